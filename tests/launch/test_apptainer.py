"""Apptainer's command line, and the image that it is given; the stand-in refuses options that are not documented."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from launch.standins import folder_of, wait_until, write_apptainer, write_standin
from refused import raises
from seams.launch import Engine, Image, LockedImage, Pin, apptainer, image_file, write_lock

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError, LaunchError, PreflightError
from wattdock.launch import choose_launcher
from wattdock.launch.images import read_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.launch import LauncherChoice, LaunchSpec

DIGEST = f"registry.example/wattdock-pytorch@sha256:{'d' * 64}"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in, which is all that is on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "program").write_text(str(write_standin(tmp_path)))
    return write_apptainer(tmp_path / "bin")


def choose(home: Path, lock: dict[str, LockedImage] | None = None, **settings: Any) -> LauncherChoice:
    config = ExperimentConfig.model_validate({"launcher": "apptainer", **settings})
    write_lock(home / "images.lock", lock or {})
    return choose_launcher(config, on_gpu=False, home=home, lock=lambda: read_lock(home / "images.lock"))


@pytest.mark.parametrize(("name", "gpus"), [("apptainer", ()), ("apptainer", (3, 1)), ("singularity", (3, 1))])
def test_a_runner_gets_its_variables_model_and_tmp_and_nothing_of_the_caller(
    name: str, gpus: tuple[int, ...], spec: Callable[[str], LaunchSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of links, at a path that --bind would cut in three; GPUs by index, as --nv shows all."""
    monkeypatch.setenv("APPTAINERENV_LD_PRELOAD", "/evil.so")
    monkeypatch.setenv("APPTAINER_BIND", "/etc")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example:3128")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("NCCL_NTHREADS", "2")
    model, draft, blob, scratch = (tmp_path / name for name in ("model", 'a:b,c "d"', "blob", "scratch"))
    for folder in (model, draft, scratch):
        folder.mkdir()
    blob.write_text("{}")
    (model / "config.json").symlink_to(blob)
    image = tmp_path / "image.sif"
    image.write_text(str(write_standin(tmp_path)))
    engine = Engine(str(write_apptainer(tmp_path, name)), "1")
    asked = dataclasses.replace(
        spec("show"),
        model_path=model,
        draft_path=draft,
        gpu_indices=gpus,
        variables={"OWN": "7"},
    )
    with apptainer.launch(asked, engine=engine, file=image, cache=tmp_path / "cache", scratch=scratch) as runner:
        wait_until(lambda: not runner.alive())
        assert runner.exit_reason() == "exited with code 0", asked.log_path.read_text()
        assert (runner.model_path(model), runner.model_path(draft)) == (Path("/model"), Path("/draft"))
        inside = json.loads(asked.log_path.read_text().partition("json ")[2])
    variables = inside["environ"]
    given, mounts = json.loads(variables["GIVEN"])
    assert (variables["CUDA_VISIBLE_DEVICES"], "nv" in given) == (",".join(map(str, gpus)), bool(gpus))
    own = [["/run/wattdock", str(folder_of(runner.address))], ["/cache", str(tmp_path / "cache")]]
    assert mounts == [*own, ["/model/config.json", f"{blob}:ro"], ["/draft", f"{draft}:ro"]]
    assert (variables["NCCL_NTHREADS"], variables["HOME"]) == ("2", "/cache/home")
    assert variables["OWN"] == "7"
    assert Path(variables["TMPDIR"]).is_relative_to(scratch)
    assert {"LD_PRELOAD", "APPTAINER_BIND", "WATTDOCK_HOME"}.isdisjoint(variables)
    assert "secret" not in str(variables)
    assert inside["cwd"] in ("/run/wattdock", str(folder_of(runner.address)))
    assert inside["arguments"][:4] == ["-m", "wattdock_runner", "--backend", "show"]


def test_without_the_program_it_is_refused_and_auto_never_takes_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an image is no reason for `auto`."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    assert choose(tmp_path, launcher="auto").name == "process"
    program.unlink()
    with raises(PreflightError, "neither apptainer nor singularity is on PATH", "--launcher process"):
        choose(tmp_path, container={"image": "x.sif"})
    write_apptainer(program.parent, "singularity")
    (tmp_path / "x.sif").touch()
    choice = choose(tmp_path, container={"image": str(tmp_path / "x.sif")})
    assert choice.image
    assert (choice.name, choice.image.engine.version) == ("apptainer", "4.1.0")


@pytest.mark.usefixtures("program")
def test_the_lock_s_image_is_taken_by_digest_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster has none; what no registry has, it cannot get."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    locked = LockedImage(digest=DIGEST, base="b", base_digest=f"sha256:{'b' * 64}", revision="c0ffee")
    choice = choose(tmp_path, {"pytorch": locked}, container={"locked": True})
    image = choice.image
    assert image
    assert (image.name, image.id, image.digest) == (DIGEST, f"sha256:{'d' * 64}", DIGEST)
    assert (image.revision, image.base_digest) == ("c0ffee", f"sha256:{'b' * 64}")
    assert choice.pin == Pin(DIGEST, read_lock(tmp_path / "images.lock").sha256)
    # Its runners share this process's memory, and get what containers get of the caller's variables.
    assert (choice.limits, "LD_PRELOAD" in choice.variables) == (None, False)
    with raises(PreflightError, "names no image for pytorch"):
        choose(tmp_path, {"vllm": locked})
    with raises(PreflightError, "no registry has the image"):
        choose(tmp_path, {"pytorch": LockedImage(digest=f"sha256:{'d' * 64}", base="b")})
    named = choose(tmp_path, container={"image": DIGEST}).image
    assert named
    assert (named.name, named.digest) == (image.name, DIGEST)


@pytest.mark.usefixtures("program")
def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    """Nothing else says what is in it."""
    file = tmp_path / "x.sif"
    file.write_bytes(b"one")
    for content, prefix in ((b"one", ""), (b"two!", "oci-archive:")):
        file.write_bytes(content)
        choice = choose(tmp_path, container={"image": f"{prefix}{file}"})
        assert choice.image
        assert (choice.image.id, choice.image.digest) == (f"sha256:{hashlib.sha256(content).hexdigest()}", None)
    with raises(ConfigError, "launcher: apptainer and runner_python"):
        choose(tmp_path, container={"image": str(file)}, runner_python=sys.executable)
    with raises(PreflightError, "absent.sif", "No such file", "oci-archive:FILE"):
        choose(tmp_path, container={"image": "absent.sif"})


def test_what_it_would_not_do_is_refused() -> None:
    """Before anything is looked for."""
    with raises(ValueError, "limits of container", "launcher: apptainer"):
        ExperimentConfig.model_validate({"launcher": "apptainer", "container": {"memory_gb": 3}})


def test_an_image_s_file_is_made_once_and_a_registry_s_refusal_is_one_line(program: Path, tmp_path: Path) -> None:
    """From a registry or an archive; a file is taken as it is."""
    engine, said, folder = Engine(str(program), "1"), list[str](), tmp_path / "images"
    image = Image(engine, DIGEST, f"sha256:{'d' * 64}", DIGEST)
    for _ in range(2):
        assert image_file(image, folder, said.append) == folder / ("d" * 64) / "image.sif"
    assert (folder / ("d" * 64) / "image.sif").read_text() == (tmp_path / "program").read_text()
    assert len(said) == 1
    archive = Image(engine, f"oci-archive:{tmp_path}/program", f"sha256:{'e' * 64}", None)
    assert image_file(archive, folder, said.append).is_file()
    assert image_file(Image(engine, str(program), "sha256:1", None), folder, said.append) == program
    absent = Image(engine, "absent/x", f"sha256:{'a' * 64}", "absent/x")
    with raises(LaunchError, "cannot get absent/x", "manifest unknown"):
        image_file(absent, folder, said.append)
    assert sorted(file.name for file in folder.glob("[!.]*")) == ["d" * 64, "e" * 64]

"""Models from a hub: the real huggingface_hub against a real server on loopback, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inputs.hub_server import COMMIT, Hub, serve
from make import models as tiny
from unprivileged import run_as_user, user_home

from wattdock.config import ModelSpec
from wattdock.errors import ConfigError
from wattdock.inputs import check_model

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

MODEL = "owner/tiny"
# Reads cases, and resolves each in a process of its own: huggingface_hub reads its variables when it is imported.
RESOLVE = """
import dataclasses, json, os, sys
from pathlib import Path
from wattdock.config import ModelSpec
from wattdock.errors import WattdockError
from wattdock.inputs import resolve_model
assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    if os.fork():
        os.wait()
        print('resolved', flush=True)
        continue
    model, home, variables = json.loads(line)
    os.environ.update(variables)
    said = []
    try:
        folder = resolve_model(ModelSpec.model_validate(model), home=Path(home), progress=said.append)
        print(json.dumps({"folder": {**dataclasses.asdict(folder), "path": str(folder.path)}, "said": said}))
    except WattdockError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error), "said": said}))
    sys.exit()
"""


# Resolves a model in offline mode, and says why it cannot.
OFFLINE = """
import sys
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.inputs.hub import resolve_hub
try:
    resolve_hub("owner/tiny", revision=None, with_code=False, home=Path(sys.argv[1]), progress=print)
except PreflightError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def resolver() -> Iterator[subprocess.Popen[str]]:
    """Return a process that resolves models and knows no hub."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS"))
    }
    words = [sys.executable, "-W", "error", "-c", RESOLVE]
    with subprocess.Popen(
        words, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def hub(resolver: subprocess.Popen[str]) -> Iterator[Hub]:
    with serve() as hub:
        hub.resolver = resolver
        hub.files[MODEL] = tiny.files()
        yield hub


def resolve(hub: Hub, home: Path, *, model: dict[str, Any] | None = None, **env: str) -> dict[str, Any]:
    """Resolve a model in a fresh process that knows no hub but this one."""
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "no_proxy": "127.0.0.1"} | env
    assert hub.resolver is not None
    assert hub.resolver.stdin is not None
    assert hub.resolver.stdout is not None
    hub.resolver.stdin.write(json.dumps([model or {"id": MODEL}, str(home), variables]) + "\n")
    hub.resolver.stdin.flush()
    printed = list(iter(hub.resolver.stdout.readline, "resolved\n"))
    assert "hf_" not in "".join(printed).replace("hf_hub", "")
    answer: dict[str, Any] = json.loads(next(line for line in printed if line.startswith("{")))
    return answer


def names_in(folder: dict[str, Any]) -> set[str]:
    return {file.name for file in Path(folder["path"]).iterdir()}


def test_a_model_comes_down_once_with_its_commit_and_its_size_said_first(hub: Hub, tmp_path: Path) -> None:
    """The branch that was asked for becomes the commit that is recorded."""
    answer = resolve(hub, tmp_path)
    folder = answer["folder"]
    assert folder["revision"] == COMMIT
    assert (folder["kind"], folder["name"], folder["has_tokenizer"]) == ("hub", MODEL, True)
    assert names_in(folder) == set(tiny.files())
    assert answer["said"] == [f"downloading {MODEL} at 01234567 (147 bytes)"]
    assert resolve(hub, tmp_path)["said"] == []
    assert (tmp_path / "models/hub/.locks").stat().st_mode & 0o077 == 0, "nobody else can hold a lock that it waits for"


def test_a_cached_commit_is_used_without_a_request_unless_a_file_is_gone(hub: Hub, tmp_path: Path) -> None:
    """A pinned model must load on a machine without a network; an interrupted download must not pass for a model."""
    first = resolve(hub, tmp_path)
    hub.requests.clear()
    assert resolve(hub, tmp_path, model={"id": MODEL, "revision": COMMIT})["folder"] == first["folder"]
    assert hub.requests == []
    (tmp_path / "models/hub/models--owner--tiny/snapshots" / COMMIT / "model.safetensors").unlink()
    assert resolve(hub, tmp_path, model={"id": MODEL, "revision": COMMIT})["folder"] == first["folder"]


@pytest.mark.parametrize("how", ["through the link", "in the link's place", "beside"])
def test_settings_that_were_changed_in_the_cache_are_not_published_under_the_commit(
    hub: Hub, tmp_path: Path, how: str
) -> None:
    """An editor writes through a link, `sed -i` puts a file in its place, and a chat template may be added."""
    place = Path(resolve(hub, tmp_path)["folder"]["path"])
    file = place / ("chat_template.jinja" if how == "beside" else "config.json")
    was = (place / "config.json").read_bytes()
    if how == "in the link's place":
        file.unlink()
    file.write_bytes(was.replace(b"{", b'{"num_experts_per_tok": 1, ', 1))
    for model in ({"id": MODEL}, {"id": MODEL, "revision": COMMIT}):
        answer = resolve(hub, tmp_path, model=model)
        assert answer["error"] == "PreflightError"
        assert f"{file} is not the hub's: it was changed here" in answer["message"]
    by_path = resolve(hub, tmp_path, model={"path": str(place)})["folder"]
    assert by_path["revision"].startswith(f"hub-cache:{COMMIT}+files-sha256:")
    file.resolve().unlink()
    file.unlink(missing_ok=True)
    assert resolve(hub, tmp_path)["folder"]["revision"] == COMMIT


def test_weights_that_were_changed_in_the_cache_are_not_published_under_the_commit(hub: Hub, tmp_path: Path) -> None:
    """One byte of them is enough; a hub tells the SHA-256 of a large file as the name of its copy."""
    file = Path(resolve(hub, tmp_path)["folder"]["path"]) / "model.safetensors"
    content = file.read_bytes()
    blob = file.resolve().rename(file.resolve().with_name(hashlib.sha256(content).hexdigest()))
    file.unlink()
    file.symlink_to(blob)
    model = {"id": MODEL, "revision": COMMIT}
    assert resolve(hub, tmp_path, model=model)["folder"]["revision"] == COMMIT
    blob.write_bytes(content[:-1] + b"\1")
    assert f"{file} is not the hub's: it was changed here" in resolve(hub, tmp_path, model=model)["message"]


def test_a_copied_cache_is_published_with_the_digest_of_what_it_holds(hub: Hub, tmp_path: Path) -> None:
    """Without links no name tells what the hub's files held, so the commit does not stand alone, changed or not."""
    place = Path(resolve(hub, tmp_path)["folder"]["path"])
    for file in place.iterdir():
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
    model = {"id": MODEL, "revision": COMMIT}
    copied = resolve(hub, tmp_path, model=model)["folder"]["revision"]
    assert copied == resolve(hub, tmp_path, model={"path": str(place)})["folder"]["revision"]
    assert copied.startswith(f"hub-cache:{COMMIT}+files-sha256:")
    (place / "model.safetensors").write_bytes(tiny.weights(2.0))
    assert resolve(hub, tmp_path, model=model)["folder"]["revision"] not in (copied, COMMIT)


def test_small_weights_are_held_to_gits_name_and_others_told_by_their_digest(hub: Hub, tmp_path: Path) -> None:
    """Git names what a hub does not keep apart; a mirror's name may say nothing."""
    file = Path(resolve(hub, tmp_path)["folder"]["path"]) / "model.safetensors"
    content, model = file.read_bytes(), {"id": MODEL, "revision": COMMIT}
    file.resolve().write_bytes(content[:-1] + b"\1")
    assert f"{file} is not the hub's: it was changed here" in resolve(hub, tmp_path, model=model)["message"]
    file.resolve().write_bytes(content)
    assert resolve(hub, tmp_path, model=model)["folder"]["revision"] == COMMIT
    blob = file.resolve().rename(file.resolve().with_name("mirror's"))
    file.unlink()
    file.symlink_to(blob)
    assert resolve(hub, tmp_path, model=model)["folder"]["revision"].startswith(f"hub-cache:{COMMIT}+files-sha256:")


def test_only_what_an_engine_loads_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    """Second copies of the weights and other formats stay where they are, and code that is not trusted."""
    extra = {"consolidated.safetensors": b"x", "onnx/model.json": b"{}", "pytorch_model.bin": b"x", "modeling.py": b"x"}
    hub.files[MODEL] |= extra
    asked = resolve(hub, tmp_path)
    assert names_in(asked["folder"]) == set(tiny.files())
    assert not [path for _, path, _ in hub.requests if any(name in path for name in extra)]
    trusted = resolve(hub, tmp_path / "trusted", model={"id": MODEL, "trust_remote_code": True})["folder"]
    assert names_in(trusted) == {*tiny.files(), "modeling.py"}


@pytest.mark.parametrize(
    ("model", "env", "values"),
    [
        ({"id": MODEL, "revision": "v9"}, {}, "'v9'"),
        ({"id": "owner/absent"}, {}, "http://127.0.0.1: spelling, HF_TOKEN"),
        ({"id": "owner/gated"}, {}, "gated; HF_TOKEN"),
        ({"id": "owner/gated"}, {"HF_TOKEN": "hf_other"}, "gated; HF_TOKEN"),
        ({"id": "owner/bin"}, {}, "'main' pytorch_model.bin, *.safetensors"),
        ({"id": "owner/gguf"}, {}, "'main' x.Q4.gguf, *.safetensors; `hf download` llamacpp"),
        ({"id": "owner/none"}, {}, "'main'; model.safetensors, model.safetensors.index.json"),
        ({"id": MODEL}, {"HF_HUB_OFFLINE": "1"}, "'main' HF_HUB_OFFLINE"),
        ({"id": MODEL}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 ConnectError"),
        ({"id": MODEL}, {"HF_ENDPOINT": "mirror.example"}, "HF_ENDPOINT=mirror.example https://"),
        ({"id": "nosuch"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "OWNER/NAME, ./FOLDER"),
        ({"id": "owner/broken"}, {}, "http://127.0.0.1: status"),
    ],
)
def test_what_cannot_be_had_is_one_line_that_says_what_to_do(
    hub: Hub, tmp_path: Path, model: dict[str, Any], env: dict[str, str], values: str
) -> None:
    """Wrong revision, unknown, gated, no usable weights, offline, unreachable."""
    hub.files |= {"owner/gated": tiny.files(), "owner/none": {"config.json": b"{}"}}
    hub.files["owner/gguf"] = {"config.json": b"{}", "x.Q4.gguf": b"x", "pytorch_model.bin": b"x"}
    hub.files["owner/bin"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    hub.gated.add("owner/gated")
    answer = resolve(hub, tmp_path, model=model, **env)
    # What the hub has is no model that can be run, as in a folder; or it cannot be fetched.
    assert answer["error"] == ("ConfigError" if "safetensors" in values else "PreflightError")
    assert [value for value in (model["id"], *values.split()) if value not in answer["message"]] == []
    assert "\n" not in answer["message"]


def test_an_adapter_of_the_hub_is_called_one_though_it_has_no_config(hub: Hub, tmp_path: Path) -> None:
    """Its base, not its lack of a config.json, says what to do."""
    adapter = json.dumps({"base_model_name_or_path": "owner/base"}).encode()
    hub.files["owner/adapter"] = {"adapter_config.json": adapter, "adapter_model.safetensors": b"x"}
    assert "holds an adapter for 'owner/base'" in resolve(hub, tmp_path, model={"id": "owner/adapter"})["message"]


def test_the_token_opens_a_gated_model_and_appears_nowhere(hub: Hub, tmp_path: Path) -> None:
    """huggingface_hub reads the token; nothing of ours ever shows it."""
    hub.files["owner/gated"] = tiny.files()
    hub.gated.add("owner/gated")
    assert resolve(hub, tmp_path, model={"id": "owner/gated"}, HF_TOKEN="hf_valid")["folder"]["revision"] == COMMIT
    assert {token for _, path, token in hub.requests if "resolve" in path} == {"Bearer hf_valid"}
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert written
    assert not [file for file in written if b"hf_valid" in file.read_bytes()]


def test_without_network_the_branch_as_last_seen_is_used_in_offline_mode_only(hub: Hub, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE asks for exactly that; otherwise, which commit `main` is today cannot be known."""
    folder = resolve(hub, tmp_path)["folder"]
    hub.requests.clear()
    assert resolve(hub, tmp_path, HF_HUB_OFFLINE="1")["folder"] == folder
    assert hub.requests == []
    assert "`revision`" in resolve(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")["message"]


@pytest.mark.parametrize("closed", ["models/hub", "models/hub/models--owner--tiny/snapshots"])
def test_a_cache_that_may_not_be_entered_is_not_said_to_lack_the_model(tmp_path: Path, closed: str) -> None:
    """Its permissions, not a download, are what to mend."""
    home = user_home(tmp_path)
    cached = home / "models/hub/models--owner--tiny"
    tiny.write(cached / "snapshots" / COMMIT)
    tiny.write(cached / "refs", {"main": COMMIT.encode()})
    (home / closed).chmod(0)
    done = run_as_user([sys.executable, "-c", OFFLINE, home], env={"HOME": str(home), "HF_HUB_OFFLINE": "1"}, cwd=home)
    (home / closed).chmod(0o700)
    assert done.stdout.startswith(f"owner/tiny cannot be read or written at {home / closed}")
    assert "Permission denied" in done.stdout
    assert done.stdout.count("\n") == 1


DID_YOU_MEAN = r"did you mean 'smollm2-135m-instruct'\? A hub's ids look like OWNER/NAME"


@pytest.mark.parametrize(
    ("model_id", "said"),
    [
        *((model_id, "is no model id; write OWNER/NAME") for model_id in ("a/b/c", "owner/na me", "-x/y", "")),
        ("smollm2-135m-instuct", DID_YOU_MEAN),
        ("SmolLM2-135M-Instruct", DID_YOU_MEAN),
        ("smollm2-135m", "shape:smollm2-135m"),
    ],
)
def test_an_id_that_no_hub_has_is_refused_before_anyone_is_asked(model_id: str, said: str) -> None:
    """Needs no network, so it comes first; a hub would say that it does not answer, or that there is no such model."""
    with pytest.raises(ConfigError, match=said):
        check_model(ModelSpec(id=model_id))


@pytest.mark.parametrize("model_id", ["gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_an_id_unlike_the_embedded_models_is_left_to_the_hub(model_id: str) -> None:
    """Some hub models have no owner."""
    check_model(ModelSpec(id=model_id))

"""Backends are found by their folder; what the environment of a runner holds, and where its socket lies."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from refused import raises
from seams.launch import REPO, container_variables, engine_settings, process_variables
from unprivileged import UID, short_name

from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.host import folders
from wattdock.launch import backends, find_runner

FAKE = Path("/runners/fake")


@pytest.fixture
def more_runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one backend and three that are none, named by WATTDOCK_RUNNERS."""
    for module in ("slim/wattdock_slim.py", "wide/wattdock_other.py", "bare/notes.txt", "common/wattdock_runner/x.py"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / module).touch()
    monkeypatch.setenv("WATTDOCK_RUNNERS", str(tmp_path))
    return tmp_path


def test_a_folder_with_its_module_is_a_backend(more_runners: Path) -> None:
    """A fourth backend is a folder, nothing to register."""
    assert find_runner("slim") == more_runners / "slim"
    assert {"wide", "bare", "common", "other"}.isdisjoint(backends())


def test_the_project_comes_last(more_runners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own version of a backend wins over the one in this repository."""
    own = more_runners / "pytorch/wattdock_pytorch.py"
    own.parent.mkdir()
    own.touch()
    assert find_runner("pytorch") == own.parent
    monkeypatch.setenv("HOME", str(more_runners.parent))
    monkeypatch.setenv("WATTDOCK_RUNNERS", f"~/{more_runners.name}")
    assert find_runner("pytorch") == own.parent


@pytest.mark.parametrize(
    ("name", "nearest"),
    # What a file says must not reach outside the runners.
    [("slimm", "'slim'"), *((name, "") for name in ("../slim", "", "slim/", "."))],
)
def test_an_unknown_backend_is_refused_with_the_nearest_name(more_runners: Path, name: str, nearest: str) -> None:
    """A slip of the finger costs one line."""
    with raises(ConfigError, repr(name), nearest):
        find_runner(name)


@pytest.mark.parametrize(
    ("name", "value", "reaches"),
    [
        *((name, "x", False) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GH_TOKEN", "hf_token", "PGPASSWORD")),
        *((name, "x", False) for name in ("TOKEN", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN")),
        *((name, "x", False) for name in ("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS")),
        # None of these looks like a secret; whatever is not known to be an engine's stays with the coordinator.
        *((name, "x", False) for name in ("GITHUB_PAT", "MYSQL_PWD", "SSHPASS", "REDIS_URL", "KUBECONFIG", "KEYBOARD")),
        *((name, "x", False) for name in ("VLLM_API_KEY", "HF_TOKEN_PATH", "NVIDIA_PWD", "RAY_REDIS_PASSWORD")),
        *((name, "x", False) for name in ("NCCL_KEY_OF_SOMETHING", "RAY_ADDRESS", "NVIDIA_LOGIN", "HF_ENDPOINT")),
        # Secrets also hide in the values of harmless names.
        *((name, "http://me:secret@proxy:1", False) for name in ("HTTPS_PROXY", "HF_ENDPOINT")),
        *((name, "x", True) for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "NCCL_NVLS_ENABLE", "VLLM_MAX_TOKENS_X")),
        *((name, "x", True) for name in ("OMP_NUM_THREADS", "LC_ALL", "TMPDIR", "CC", "CPLUS_INCLUDE_PATH")),
    ],
)
def test_what_steers_an_engine_reaches_it_and_secrets_do_not(name: str, value: str, reaches: bool) -> None:
    """A runner loads models that the coordinator fetched, and has no use for secrets."""
    assert (process_variables(FAKE, (3, 0), {name: value}, keep_pythonpath=True).get(name) == value) is reaches


def test_gpus_are_integer_indices_in_bus_order_and_hubs_are_offline() -> None:
    """An engine sees the GPUs asked for, in the order asked for, whatever the caller's own setting."""
    variables = process_variables(
        FAKE, (3, 0), {"CUDA_VISIBLE_DEVICES": "7", "HF_HUB_OFFLINE": "0"}, keep_pythonpath=False
    )
    assert (variables["CUDA_DEVICE_ORDER"], variables["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "3,0")
    assert (variables["HF_HUB_OFFLINE"], variables["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert variables["TOKENIZERS_PARALLELISM"] == "false"
    # An absent variable would show all of them.
    assert process_variables(FAKE, (), {}, keep_pythonpath=False)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("keep", "caller_folders"), [(False, []), (True, ["/site", f"{Path.cwd()}/here"])])
def test_the_callers_module_path_is_kept_only_for_a_named_interpreter(keep: bool, caller_folders: list[str]) -> None:
    """Machines bring packages that way; a runner's own environment must not be mixed with them."""
    variables = process_variables(FAKE, (3, 0), {"PYTHONPATH": "/site::here", "PYTHONHOME": "/x"}, keep_pythonpath=keep)
    runner_folders = [str(REPO / "proto"), str(REPO / "runners" / "common"), "/runners/fake"]
    assert variables["PYTHONPATH"].split(os.pathsep) == runner_folders + caller_folders
    assert "PYTHONHOME" not in variables


GIVEN = {
    "VLLM_ATTENTION_BACKEND": "FLASH_ATTN",
    "OMP_NUM_THREADS": "4",
    "CUDA_LAUNCH_BLOCKING": "1",
    "LD_PRELOAD": "/lib/x.so",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_VISIBLE_DEVICES": "7",
    "HF_HUB_OFFLINE": "0",
    "HOME": "/home/me",
    "EDITOR": "vi",
    # What an image tells the container toolkit, two thousand characters that steer nothing.
    "NVIDIA_REQUIRE_CUDA": "cuda>=13.0",
}
SECRETS = {"HF_TOKEN": "hf_x", "VLLM_API_KEY": "x", "NCCL_KEY_OF_SOMETHING": "y", "HF_ENDPOINT": "https://me:pw@host"}


def test_what_reaches_a_runner_of_an_engines_settings_is_told_and_nothing_secret() -> None:
    """Each launcher lets others through; what is set here counts nowhere; a secret passes nowhere."""
    process = engine_settings(GIVEN | SECRETS, in_container=False)
    container = engine_settings(GIVEN | SECRETS, in_container=True)
    everywhere = {"OMP_NUM_THREADS": "4", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}
    more = {"CUDA_LAUNCH_BLOCKING": "1", "LD_PRELOAD": "/lib/x.so", "NCCL_SOCKET_IFNAME": "eth0"}
    assert process == everywhere | more
    assert container == everywhere
    reached = container_variables((), GIVEN | SECRETS, cache="/cache")
    assert reached.items() >= {"OMP_NUM_THREADS": "4", "NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}.items()
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & reached.keys()


@pytest.mark.parametrize("runtime", ["here", None, "", "relative", "/absent/folder"])
def test_a_sockets_folder_is_private(runtime: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else may talk to a runner; cron jobs and containers have no runtime folder, or one that does not exist."""
    place = short_name(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    in_runtime = runtime == "here"
    (place / "r").mkdir()
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": str(place / "r") if in_runtime else runtime}
    folder = folders.make_socket_folder(environ).path
    assert folder.parent == (place / "r" if in_runtime else place)
    assert folder.name.startswith("wattdock-")
    assert stat.S_IMODE(folder.stat().st_mode) & 0o777 == 0o700


@pytest.mark.parametrize(("length", "allowed"), [(100, True), (101, False)])
def test_one_hundred_bytes_are_the_limit(
    length: int, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as the kernel does, in bytes and with the socket's own name; ä counts twice."""
    place = short_name(tmp_path)
    fixed = len(f"{place}/ä/wattdock-01234567/r.sock".encode())
    parent = place / ("ä" + "d" * (length - fixed))
    parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    if allowed:
        assert len(bytes(folders.make_socket_folder({}).path / "r.sock")) == length
    else:
        with raises(PreflightError, "101", "100", "TMPDIR"):
            folders.make_socket_folder({})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to set instead."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with raises(PreflightError, "TMPDIR", cause=Cause.NOT_A_FILE):
        folders.make_socket_folder({})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_no_socket_lies_in_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `su` the variable still names the other user's folder, whose owner could exchange what is in it."""
    (tmp_path / "runtime").mkdir()
    os.chown(tmp_path / "runtime", UID, UID)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert folders.make_socket_folder({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}).path.parent == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_temporary_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could put a link in the place of what is made in it, whatever its mode."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.chown(tmp_path, UID, UID)
    with raises(PreflightError, tmp_path, UID, "TMPDIR", cause=Cause.OTHERS_COULD_WRITE), folders.scratch_folder():
        pass
    with raises(PreflightError, tmp_path, UID, "TMPDIR", cause=Cause.OTHERS_COULD_WRITE):
        folders.make_socket_folder({})

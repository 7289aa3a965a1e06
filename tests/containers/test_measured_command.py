"""`wattdock measure --image`: a command of a user's own in a container of an image of their own."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from command import commit_all, on_gpus
from containers.conftest import InContainers
from containers.engines import BASE, build_on, home_and_folder, image_there, tagged
from containers.registry import address_for_others, serving
from fake_nvml import FakeGpu, FakeProcess, constant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from docker import DockerClient

SCRIPT = """
import json, os, socket, sys, time
path = os.environ["WATTDOCK_SPANS"] + "/1-0.jsonl"
open("made-here", "w").write(os.environ["WHO"])
begin = time.monotonic()
with open(path, "a") as marks:
    for step in range(5):
        time.sleep(max(0, begin + 0.1 * (step + 1) - time.monotonic()))
        marks.write(json.dumps(["work", time.monotonic_ns(), {"samples": 8}]) + "\\n")
print("secret" in os.environ, [name for _, name in socket.if_nameindex()], flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def user(tmp_path: Path, client: DockerClient) -> Iterator[InContainers]:
    """A user of the engine, with an image that knows nothing of wattdock."""
    image_there(BASE)
    with tagged("own") as name:
        image = build_on(BASE, name, {}, "LABEL own=1")
        yield InContainers(*home_and_folder(tmp_path), image=image, client=client)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_in_a_container_marks_and_writes_in_its_folder_and_reaches_nothing_else(
    user: InContainers, code: int
) -> None:
    (user.folder / "train.py").write_text(SCRIPT)
    words = ("--image", user.image.name, "--unit", "samples", "--set", "measure.env.WHO=me")
    done = user("measure", *words, "--", "python3", "train.py", str(code), env={"secret": "x"})
    [result] = user.results()
    assert done.returncode == (5 if code else 0), done.stderr
    assert (user.folder / "made-here").read_text() == "me"
    assert "False ['lo']" in done.stderr
    assert result["environment"]["launcher"] == "docker"
    assert result["status"] == ("failed" if code else "ok")
    if code:
        assert "the command exited with code 3" in result["error"]["message"]
    else:
        assert result["work"]["count"] == 40
    assert user.containers() == []


def pushed(user: InContainers, folder: Path) -> Iterator[str]:
    """Yield the image's name and digest in a registry that others reach."""
    with serving(folder, address_for_others()) as address:
        repository = f"{address}/own"
        user.client.images.get(user.image.name).tag(repository, "1")
        user.client.images.push(repository, tag="1")
        user.client.images.remove(f"{repository}:1")
        yield user.client.images.pull(repository, tag="1").attrs["RepoDigests"][-1]
        user.client.images.remove(f"{repository}:1")


def test_a_command_of_a_commit_in_an_image_that_others_can_pull_is_published(
    user: InContainers, tmp_path: Path
) -> None:
    """On a simulated GPU, three runs of 12 s: all checks hold, but those that a busy machine may fail."""
    library = on_gpus(user, FakeGpu(profile=(constant(150.0),), processes=(FakeProcess(0, memory_bytes=0),)))
    (user.folder / "publish.py").write_text(SCRIPT.replace("range(5)", "range(120)"))
    (user.folder / ".gitignore").write_text("made-here")
    commit_all(user.folder)
    with contextmanager(pushed)(user, tmp_path) as image:
        words = ("--publishable", "--image", image, "--unit", "samples", "--set", "measure.env.WHO=me")
        env = {**library, "FAKE_NVML_RUNNER": "publish.py"}
        done = user("measure", *words, "--", "python3", "publish.py", "0", env=env)
    [result] = user.results()
    checks = {check["name"]: check for check in result["audit"]["checks"]}
    # A checkout with changes of its own is no commit's.
    may_fail = {"software"} if result["environment"]["wattdock_dirty"] else set()
    assert (image in checks["software"]["figure"]) == (not may_fail)
    left = {check["name"] for check in checks.values() if check["status"] in ("fail", "unknown")}
    assert left <= {"CPU use by others", "uncertainty", *may_fail}
    assert done.returncode == (8 if left else 0), done.stderr
    assert done.stdout.startswith("not publishable: " if left else "publishable: ")


def test_a_run_ends_with_its_process_not_when_the_engine_tells_of_it(user: InContainers) -> None:
    """The engine tells of the end of a process once it has handed over its output, 100 MB here."""
    (user.folder / "loud.py").write_text(
        "import time\nprint('x' * 99 + '\\n', end='', flush=True)\n"
        "for _ in range(1000): print(('x' * 99 + '\\n') * 1000, end='')\n"
        "open('ended', 'w').write(str(time.monotonic_ns()))\n"
    )
    begun_s = int(time.time())
    done = user("measure", "--quiet", "--image", user.image.name, "--", "python3", "loud.py")
    assert done.returncode == 0, done.stderr[-2000:]
    [result] = user.results()
    [run] = [span for span in result["spans"] if span["name"] == "pass"]
    events = user.client.events(since=begun_s, until=int(time.time()) + 1, decode=True, filters={"event": "die"})
    told_ns = max(event["timeNano"] for event in events) - time.time_ns() + time.monotonic_ns()
    assert int((user.folder / "ended").read_text()) <= run["end_ns"] <= told_ns


def test_an_image_that_is_not_there_is_named_with_the_command_that_gets_it(user: InContainers) -> None:
    done = user("measure", "--image", "no/such:1", "--", "true")
    assert done.returncode == 3
    assert "image no/such:1 is not there" in done.stderr
    assert "docker pull no/such:1" in done.stderr

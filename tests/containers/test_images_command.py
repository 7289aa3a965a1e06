"""`wattdock images` from outside: what it refuses, in one line with a documented exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from containers.engines import BASE, engine_address, image_there, tagged

from wattdock.launch.images.lock import NOT_BUILT, LockedImage, write_lock

if TYPE_CHECKING:
    from docker import DockerClient

REPO = Path(__file__).resolve().parents[2]
WATTDOCK = Path(sys.executable).with_name("wattdock")


def images(*words: str, lock: Path | None = None, engine: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": engine or engine_address()}
    if lock:
        env["WATTDOCK_IMAGES_LOCK"] = str(lock)
    return subprocess.run(
        [WATTDOCK, "images", *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("build nosuch", 2, "unknown image 'nosuch'; there are coordinator, pytorch, tensorrt, vllm"),
        ("build pytorch --base 127.0.0.1:1/absent", 3, "cannot pull 127.0.0.1:1/absent: "),
        (f"build pytorch --base {BASE} --variant cpu --client absent", 3, "cannot run absent: No such "),
        ("pull vllm", 3, f"cannot pull vllm: {NOT_BUILT}"),
        ("pull", 2, "the lock holds no image that a registry has; see: wattdock images list"),
        ("push tensorrt --to 127.0.0.1:1/x", 3, "wattdock-tensorrt is not there; build it with: wattdock images "),
    ],
)
def test_what_cannot_be_done_is_one_line_with_what_to_do(words: str, code: int, said: str, tmp_path: Path) -> None:
    """And nothing is pulled but what was asked for."""
    image_there(BASE)
    lock = tmp_path / "images.lock"
    write_lock(lock, {"vllm": LockedImage(base="base")})
    done = images(*words.split(), lock=lock)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_an_engine_nothing_is_written(tmp_path: Path) -> None:
    """A lock full of what could not be asked would be worse than none."""
    lock = tmp_path / "images.lock"
    done = images("lock", lock=lock, engine=f"unix://{tmp_path}/absent.sock")
    assert done.returncode == 3
    assert f"no Docker engine answers at unix://{tmp_path}/absent.sock; start an engine\n" in done.stderr
    assert not lock.exists()


def test_a_lock_written_where_no_registry_answers_says_what_it_lacks(tmp_path: Path) -> None:
    """And `verify` does not pass it."""
    lock = tmp_path / "images.lock"
    done = images("lock", "tensorrt", lock=lock)
    assert done.returncode == 0, done.stderr
    [entry] = yaml.safe_load(lock.read_text())["images"].values()
    assert entry["base"].startswith("nvcr.io/nvidia/tensorrt-llm/release:")
    assert (entry["digest"], entry["revision"]) == (None, None)
    verified = images("verify", "tensorrt", lock=lock)
    assert verified.returncode == 3
    assert "tensorrt: digest is open: not built yet" in verified.stdout


def test_of_several_images_that_cannot_be_locked_each_is_named_and_none_is_locked(
    client: DockerClient, tmp_path: Path
) -> None:
    """A person mends all of them at once; a lock of which half is new would look like one decision."""
    image_there(BASE)
    lock = tmp_path / "images.lock"
    assert images("lock", "tensorrt", lock=lock).returncode == 0
    before = lock.read_bytes()
    with tagged("stale") as first, tagged("stale") as second:
        for name in (first, second):
            client.images.get(BASE).tag(name)
        names = [name.removeprefix("wattdock-") for name in (first, second)]
        done = images("lock", names[0], "tensorrt", names[1], lock=lock)
    assert done.returncode == 3
    assert lock.read_bytes() == before
    said = [line for line in done.stderr.splitlines() if "does not say what it was made from" in line]
    assert [first in said[0], second in said[1]] == [True, True]
    assert f"wattdock: nothing was locked, for {names[0]}, {names[1]} cannot be; mend that, or name" in done.stderr

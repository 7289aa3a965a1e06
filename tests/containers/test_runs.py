"""`wattdock run --launcher docker` from outside, as an unprivileged user who may use the engine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import SMALL
from containers.engines import build_on, tagged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from containers.conftest import InContainers
    from docker import DockerClient
    from docker.models.containers import Container

# Long enough to be interrupted in; each step of the fake engine takes this long.
SLOW = ("--set", "fake.step_s=0.05", "--max-output-tokens", "400")
TWO = """
order: written
defaults:
  backend: fake
  model: 'shape:tiny-llama'
  repeats: {passes: 1}
  workload: {batch_size: 2, max_output_tokens: 400}
  timeouts: {heartbeat_s: 1, stop_s: 1}
experiments:
- {name: one, fake: {step_s: 0.05}}
- {name: two, workload: {max_output_tokens: 4}}
"""


@pytest.fixture
def in_no_registry(in_containers: InContainers) -> Iterator[InContainers]:
    """The same, in an image that no other test can have pushed."""
    with tagged("unpushed") as name:
        image = build_on(in_containers.image.name, name, {}, f"LABEL own={name}")
        yield dataclasses.replace(in_containers, image=image)


def test_a_row_says_that_a_container_served_it_and_which_image(in_no_registry: InContainers) -> None:
    """As a user who is not root; the container is gone afterwards, and its log is kept."""
    image = in_no_registry.image
    done = in_no_registry("run", *SMALL, "--max-output-tokens", "7", "--set", "launcher=auto")
    assert done.returncode == 0, done.stderr
    reason = f"docker {image.engine.version} has image {image.name}"
    assert done.stderr.startswith(f"launcher: docker ({reason})")
    [row] = in_no_registry.results()
    assert row["status"] == "ok"
    assert row["performance"]["output_tokens"] == 4 * 7
    environment = row["environment"]
    assert (environment["launcher"], environment["container"]["image"]) == ("docker", image.name)
    assert environment["container"]["image_id"] == image.id
    assert f"{image.name} ({image.id[:19]}" in done.stdout
    # Built here and in no registry, so nobody else could get it by a digest.
    assert environment["image_digest"] is None
    [folder] = (in_no_registry.folder / "results").glob("2*")
    assert "/run/wattdock/r.sock (pid 1)" in (folder / "runner.log").read_text()
    assert in_no_registry.containers() == []


def test_an_image_that_is_not_there_is_not_pulled_but_named(in_containers: InContainers) -> None:
    """What was asked for and cannot be had is refused; `auto` takes a process and says what would change that."""
    absent = ("--set", "container.image=wattdock-absent")
    refused = in_containers("plan", *SMALL, *absent, "--launcher", "docker")
    assert refused.returncode == 3
    assert all(words in refused.stderr for words in ("wattdock-absent", "make image-fake"))
    plan = in_containers("plan", *SMALL, *absent)
    assert plan.stdout.startswith("launcher: process (for containers, make it with: make image-fake)")


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "the runner died during a pass: was killed by SIGKILL"), (signal.SIGSTOP, "silent for too long")],
)
def test_a_runner_that_is_killed_or_stopped_fails_its_row_and_the_next_runs(
    number: signal.Signals, words: str, in_containers: InContainers
) -> None:
    """Both rows are stored, the cause is named, and no container is left."""
    (in_containers.folder / "x.yaml").write_text(TWO)
    running = in_containers.start("run", "x.yaml", "--quiet", stderr=subprocess.PIPE)
    in_containers.wait_for_container().kill(signal=int(number))
    _, errors = running.communicate(timeout=240)
    assert running.returncode == 5, errors
    rows = in_containers.by_name()
    assert (rows["one"]["status"], rows["two"]["status"]) == ("failed", "ok")
    assert words in rows["one"]["error"]["message"]
    assert "Generate: began" in rows["one"]["error"]["log_tail"]
    assert in_containers.containers() == []


def keepers_of(container: Container) -> list[int]:
    """Return the processes that wait to remove a container."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = (process / "cmdline").read_bytes()
            if b"keeper.py" in words and str(container.id).encode() in words:
                pids.append(int(process.name))
    return pids


def leave_orphan(in_containers: InContainers, *besides: Container) -> str:
    """Leave a container whose coordinator and keeper were both killed, and return its name."""
    # Beside one that lives, which has this machine's leases.
    leases = {"WATTDOCK_LEASES": str(in_containers.home / "other-leases")}
    running = in_containers.start("run", *SMALL, *SLOW, "--quiet", env=leases)
    container = in_containers.wait_for_container(*besides)
    for keeper in keepers_of(container):
        os.kill(keeper, signal.SIGKILL)
    running.kill()
    running.wait(30)
    return str(container.name)


def test_orphans_are_removed_by_reap_and_at_the_next_start_and_living_containers_stay(
    in_containers: InContainers,
) -> None:
    """An orphan is recognised by a lock that dies with its coordinator; Ctrl-C leaves none."""
    running = in_containers.start("run", *SMALL, *SLOW, "--quiet")
    living = in_containers.wait_for_container()
    orphan = leave_orphan(in_containers, living)
    done = in_containers("reap")
    assert done.returncode == 0, done.stderr
    assert f"removed: {orphan} (" in done.stdout
    assert f"left alone: {living.name} (" in done.stdout
    assert in_containers.containers() == [living]
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert in_containers.containers() == []
    orphan = leave_orphan(in_containers)
    done = in_containers("run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert f"removed container {orphan} (" in done.stderr
    assert in_containers.containers() == []


def test_a_keeper_has_the_leases_until_the_container_of_its_killed_coordinator_is_gone(
    in_containers: InContainers,
) -> None:
    """Whoever measured next would share the machine with it; the next start cleans up and gets them."""
    running = in_containers.start("run", *SMALL, *SLOW, "--quiet")
    container = in_containers.wait_for_container()
    [keeper] = keepers_of(container)
    os.kill(keeper, signal.SIGSTOP)
    in_containers.interrupt(signal.SIGKILL)
    running.wait(30)
    refused = in_containers("run", *SMALL)
    assert (refused.returncode, "exclusive use" in refused.stderr) == (3, True), refused.stderr
    os.kill(keeper, signal.SIGCONT)
    assert in_containers.none_within(10)
    done = in_containers("run", *SMALL, "--wait", "20")
    assert done.returncode == 0, done.stderr


def test_a_container_out_of_memory_fails_its_row_with_that_cause_and_the_next_runs(in_containers: InContainers) -> None:
    """The kernel kills without a word; the engine knows why, but for a notice that it can miss."""
    (in_containers.folder / "x.yaml").write_text(
        "defaults: {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}}\n"
        "experiments: [{name: one, container: {memory_gb: 0.02}}, {name: two}]\n"
    )
    done = in_containers("run", "x.yaml")
    assert done.returncode == 4, done.stderr
    rows = in_containers.by_name()
    assert (rows["one"]["status"], rows["two"]["status"]) == ("failed", "ok")
    error = rows["one"]["error"]
    assert "at most 20.0 MB; raise container.memory_gb" in error["message"]
    known = "ran out of memory and was killed by the kernel (exit code 137)" in error["message"]
    assert known or "was killed by SIGKILL (out of memory?" in error["message"]
    assert error["cause"] == ("out of host memory" if known else "runner died")
    # The other one had the limit that the machine's memory gives.
    limits = rows["two"]["environment"]["container"]
    assert 0 < limits["memory_limit_gb"] * 1e9 < rows["two"]["environment"]["memory_total_bytes"]
    assert limits["pids_limit"] == 16_384
    assert in_containers.containers() == []


def test_an_image_that_went_away_meanwhile_fails_its_row_and_nothing_falls_back(
    in_containers: InContainers, client: DockerClient
) -> None:
    """What serves was decided at the start, even under `launcher: auto`."""
    (in_containers.folder / "x.yaml").write_text(TWO)
    with tagged("going") as name:
        going = build_on(in_containers.image.name, name, {}, f"LABEL going={name}")
        command = dataclasses.replace(in_containers, image=going)
        running = command.start("run", "x.yaml", "--set", "launcher=auto", "--quiet", stderr=subprocess.PIPE)
        container = command.wait_for_container()
        command.interrupt(signal.SIGSTOP)
        container.remove(force=True)
        client.images.remove(going.id, force=True)
        command.interrupt(signal.SIGCONT)
        _, errors = running.communicate(timeout=240)
    rows = in_containers.by_name()
    assert [row["status"] for row in rows.values()] == ["failed", "failed"], errors
    assert "lost its container, which somebody else removed" in rows["one"]["error"]["message"]
    assert "make images" in rows["two"]["error"]["message"]
    assert rows["two"]["environment"]["launcher"] == "docker"


def test_a_study_does_not_go_on_in_another_image(in_containers: InContainers) -> None:
    """One name, other bits: half of its figures would be of one thing and half of another."""
    fake = in_containers.image
    with tagged("moving") as name:
        moving = dataclasses.replace(in_containers, image=build_on(fake.name, name, {}, labels={"build": "1"}))
        assert moving("run", *SMALL).returncode == 0
        assert moving("run", *SMALL, "--resume").returncode == 0
        build_on(fake.name, name, {}, labels={"build": "2"})
        refused = moving("run", *SMALL, "--resume")
    assert refused.returncode == 3
    assert f"fake's image {moving.image.id} → sha256:" in refused.stderr

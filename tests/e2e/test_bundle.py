"""From a measurement to a bundle and back: made on simulated GPUs, then measured again on others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import SMALL, Command, on_gpus
from fake_nvml import FakeGpu, constant
from host.lease_users import HOLD, start
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

UNDECIDED = 10
# One pass of a second.
SHORT = ("--restarts", "1", "--set", "warmup.passes=0", "--set", "fake.step_s=0.05", "--max-output-tokens", "10")


def gpu(number: int) -> FakeGpu:
    return FakeGpu(uuid=fake_nvml.uuid_of(number), profile=(constant(300),))


def new_command(folder: Path) -> Command:
    home = user_home(folder)
    (home / "work").mkdir()
    give_to_user(home / "work")
    return Command(home, home / "work")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one experiment, measured at 300 W by somebody whose home is no longer there."""
    author = new_command(tmp_path_factory.mktemp("author"))
    done = author("run", *SMALL, *SHORT, env=on_gpus(author, gpu(1)))
    assert done.returncode == 0, done.stderr
    made = author("bundle", "create", "results", "--output", "b.tar")
    assert made.returncode == 0, made.stderr
    return author.folder / "b.tar"


@pytest.fixture
def reader(tmp_path: Path, bundle: Path) -> Command:
    """Somebody else, with the bundle in their folder."""
    command = new_command(tmp_path)
    (command.folder / "b.tar").write_bytes(bundle.read_bytes())
    return command


def reproduce(reader: Command, env: dict[str, str]) -> tuple[CompletedProcess[str], dict[str, Any]]:
    done = reader("reproduce", "b.tar", "--json", env=env)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}


def test_a_bundle_is_verified_measured_again_on_another_gpu_and_compared(reader: Command) -> None:
    """At the same power; what differs is the board, and where the driver's library lies."""
    assert reader("bundle", "verify", "b.tar").returncode == 0
    done, found = reproduce(reader, on_gpus(reader, gpu(2)))
    # One restart decides nothing.
    assert done.returncode == UNDECIDED, done.stderr
    [pair] = found["pairs"]
    test = pair["tests"]["energy_per_output_token_j"]
    assert (test["restarts"], test["equivalent"]) == ([1, 1], None)
    differing = {difference["name"] for difference in found["differs_in"]}
    assert differing == {"GPU UUIDs", "variable: LD_LIBRARY_PATH"}


def test_without_its_gpus_nothing_is_started_and_the_line_says_so(reader: Command) -> None:
    """Exit code 3, before an environment is made or a model loaded; a changed bundle is not run either."""
    done, _ = reproduce(reader, on_gpus(reader, FakeGpu(name="NVIDIA L4")))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "NVIDIA H200" in done.stderr
    hidden, _ = reproduce(reader, {**on_gpus(reader, gpu(1)), "CUDA_VISIBLE_DEVICES": "7"})
    undecidable, refused = hidden.stderr.splitlines()
    assert (hidden.returncode, "a reproduction stays undecided" in undecidable) == (3, True)
    # The bundle was measured on a GPU, so that a CPU is no way out.
    assert "measure where GPUs are free" in refused
    with start(reader.home / "leases", HOLD, str(reader.home / "leases"), "machine", "GPU-x") as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        leased, _ = reproduce(reader, on_gpus(reader, gpu(1)))
        holder.kill()
    assert leased.returncode == 3, leased.stderr
    assert "--wait is an option of `wattdock run`: unpack the bundle" in leased.stderr
    content = bytearray((reader.folder / "b.tar").read_bytes())
    content[content.index(b"batch_size") + 12] ^= 1
    (reader.folder / "b.tar").write_bytes(content)
    done, _ = reproduce(reader, on_gpus(reader, gpu(1)))
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "'results/" in done.stderr
    assert not (reader.folder / "results").exists()

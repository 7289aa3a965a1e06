"""From a measurement to a bundle and back: made on simulated GPUs, then measured again on others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import SMALL, Command, on_gpus
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

THREE_RESTARTS = ("--restarts", "3", "--set", "fake.step_s=0.05", "--max-output-tokens", "20")
WATTS = 300


def gpu(number: int, power_w: float = WATTS, **more: float) -> FakeGpu:
    return FakeGpu(uuid=fake_nvml.uuid_of(number), profile=(constant(power_w),), **more)  # type: ignore[arg-type]


def new_command(folder: Path) -> Command:
    home = user_home(folder)
    (home / "work").mkdir()
    give_to_user(home / "work")
    return Command(home, home / "work")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one experiment, measured at 300 W by somebody whose home is no longer there."""
    for _ in range(3):
        author = new_command(tmp_path_factory.mktemp("author"))
        done = author("run", *SMALL, *THREE_RESTARTS, env=on_gpus(author, gpu(1)))
        assert done.returncode == 0, done.stderr
        [result] = author.results()
        costs = [measured["energy_per_output_token_j"] for measured in result["energy"]["passes"]]
        # What busy CPUs held up says nothing of a GPU: nothing could be compared with it.
        if max(costs) < 1.1 * min(costs):
            break
    made = author("bundle", "create", "results", "--output", "b.tar")
    assert made.returncode == 0, made.stderr
    return author.folder / "b.tar"


@pytest.fixture
def reader(tmp_path: Path, bundle: Path) -> Command:
    """Somebody else, with the bundle in their folder."""
    command = new_command(tmp_path)
    (command.folder / "b.tar").write_bytes(bundle.read_bytes())
    return command


def reproduce(reader: Command, env: dict[str, str], *options: str) -> tuple[CompletedProcess[str], dict[str, Any]]:
    done = reader("reproduce", "b.tar", "--json", *options, env=env)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}


def test_the_same_power_on_another_gpu_of_the_same_model_is_equivalent(reader: Command) -> None:
    """Verified, measured again, compared: what differs is the board, and where the driver's library lies."""
    assert reader("bundle", "verify", "b.tar").returncode == 0
    # On busy CPUs one of three short passes may take a tenth longer than the others.
    done, found = reproduce(reader, on_gpus(reader, gpu(2)), "--margin", "30%")
    assert done.returncode == 0, done.stderr
    [pair] = found["pairs"]
    assert pair["tests"]["energy_per_output_token_j"]["equivalent"] is True
    differing = {difference["name"] for difference in found["differs_in"]}
    assert differing == {"GPU boards", "variable: LD_LIBRARY_PATH"}


def test_twice_the_power_is_not_equivalent(reader: Command) -> None:
    """Exit code 9, the difference with its interval, and the power limit that another machine has."""
    other = gpu(1, 2 * WATTS, power_limit_w=500.0)
    done, found = reproduce(reader, on_gpus(reader, other))
    assert done.returncode == 9, done.stderr
    said = "wattdock: not reproduced: 1 of 1 experiments not equivalent, the first: "
    assert done.stderr.splitlines()[-1].startswith(said)
    [pair] = found["pairs"]
    test = pair["tests"]["energy_per_output_token_j"]
    assert test["equivalent"] is False
    assert test["relative"] == pytest.approx(1, abs=0.3)
    assert test["difference"]["interval"][0] > 0.05
    assert "GPU power limit, W" in {difference["name"] for difference in found["differs_in"]}


def test_without_its_gpus_nothing_is_started_and_the_line_says_so(reader: Command) -> None:
    """Exit code 3, before an environment is made or a model loaded; a changed bundle is not run either."""
    done, _ = reproduce(reader, on_gpus(reader, FakeGpu(name="NVIDIA L4")))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "measured on 1 × NVIDIA H200; this machine has" in done.stderr
    content = bytearray((reader.folder / "b.tar").read_bytes())
    content[content.index(b"batch_size") + 12] ^= 1
    (reader.folder / "b.tar").write_bytes(content)
    done, _ = reproduce(reader, on_gpus(reader, gpu(1)))
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "not as it was bundled: changed: 'results/" in done.stderr
    assert not (reader.folder / "results").exists()


def test_a_bundle_without_joules_is_compared_by_speed_and_says_so(wattdock: Command) -> None:
    """No figure stands in for the one that was not measured."""
    assert wattdock("run", *SMALL, *THREE_RESTARTS).returncode == 0
    assert wattdock("bundle", "create", "results", "-o", "b.tar").returncode == 0
    done = wattdock("reproduce", "b.tar", "--margin", "40%")
    assert done.returncode == 0, done.stderr
    assert "equivalent within ± 0.4 (ratio of output_tokens_per_s)" in done.stdout
    again = wattdock("reproduce", "b.tar", "--margin", "40%", "--resume", "--json")
    assert again.returncode == 0, again.stderr
    [pair] = json.loads(again.stdout)["pairs"]
    assert pair["tests"]["output_tokens_per_s"]["equivalent"] is True
    assert len(wattdock.results()) == 2

"""Whether a measured host's interval holds what a simulated server took, and how files are read that do not fit."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from forms.host_worlds import LOADS, METERS, OTHERS, draw
from make.kept import OTHER_NODE
from make.stored import unpacked
from seams.forms import HostReadings

from wattdock.owned_folder import OwnedFolder
from wattdock.records import disk

if TYPE_CHECKING:
    from conftest import Called

BUNDLE = Path(__file__).resolve().parents[2] / "docs/measurements/data/smollm2-h200.tar"
CONSTANT_W, SLOPE = 350.0, 1.08


def covered(
    folder: Path, names: tuple[str, ...], *, each: int, seed: int
) -> tuple[dict[str, list[bool]], list[float], float]:
    """Return by meter, by load and for all whether intervals hold the truth.

    And half the intervals of steady loads, as a share, and the share of unknown results.
    """
    held, steady, unknown, file = defaultdict(list), list[float](), 0, folder / "readings.csv"
    for name in names:
        for load in LOADS:
            for number in range(each):
                random = np.random.default_rng([seed, number, *map(ord, name + load)])
                world = draw(random, load, (METERS | OTHERS)[name])
                file.write_text(world.csv, encoding="utf-8")
                found = HostReadings.read(file).factor(world.result, world.restarts)
                if isinstance(found, str):
                    unknown += 1
                    continue
                steady += [found.half / found.value] if load == "steady" else []
                for kind in (name, load, "all"):
                    held[kind].append(abs(found.value - world.host_over_boards) <= found.half)
    return held, steady, unknown / (len(names) * len(LOADS) * each)


@pytest.mark.parametrize(
    ("names", "each", "least"),
    [
        (METERS, 14, 0.92),
        # Meters that the method was not made for.
        pytest.param(OTHERS, 20, 0.92, marks=pytest.mark.slow),
    ],
    ids=["meters", "others"],
)
def test_intervals_hold_the_truth_as_often_as_they_say(
    tmp_path: Path, names: dict[str, Any], each: int, least: float
) -> None:
    """Lag, averaging, gaps, rounding, slow readings, of every meter and load; narrow where work is steady."""
    held, steady, unknown = covered(tmp_path, tuple(names), each=each, seed=1)
    assert len(held["all"]) >= 500
    assert np.mean(held["all"]) >= 0.95
    assert np.median(steady) < 0.005
    assert min(np.mean(held[kind]) for kind in held) >= least
    assert unknown < 0.15


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


class Run:
    """A kept run whose records tell the time of day, and readings of a server that takes 350 W + 1.08 × boards."""

    def __init__(self, folder: Path) -> None:
        [result] = unpacked(BUNDLE, folder / "kept").glob("results/*-vllm-*")
        self.result, self.file, self.lines = result, folder / "readings.csv", list[tuple[float, float]]()
        headline = json.loads((result / "result.json").read_text(encoding="utf-8"))["energy"]["windows"]
        windows = [window for window in headline["passes"] if window["window"] == headline["headline"]]
        random, joules, seconds = np.random.default_rng(1), 0.0, 0.0
        for window in windows:
            record = result / f"restarts/{window['restart']}"
            plain = json.loads((record / "record.json").read_text(encoding="utf-8"))
            plain["started_ns"] = plain["spans"][-1]["end_ns"]
            (record / "record.json").write_text(json.dumps(plain), encoding="utf-8")
            with OwnedFolder.open(record) as opened:
                [gpu] = disk.read(opened).gpus.values()
            assert gpu.power_samples
            started_s = datetime.fromisoformat(plain["started_utc"]).timestamp()
            at_s = (gpu.power_samples.at_ns - plain["started_ns"]) / 1e9 + started_s
            drawn_j = np.cumsum(np.diff(at_s, prepend=at_s[0]) * (CONSTANT_W + SLOPE * gpu.power_samples.value))
            asked_s = np.arange(at_s[0] + 5, at_s[-1], 2.0)
            means_w = np.interp(asked_s - 2.3, at_s, drawn_j) - np.interp(asked_s - 3.3, at_s, drawn_j)
            self.lines += zip(asked_s, np.round((means_w + random.normal(0, 6, len(means_w))) / 4) * 4, strict=True)
            joules, seconds = joules + window["total_j"], seconds + window["duration_s"]
        self.host_over_boards = SLOPE + CONSTANT_W * seconds / joules

    def write(self, lines: list[tuple[float, float]], header: str = "time,watts") -> None:
        self.file.write_text("\n".join([header, *(f"{at:.3f},{watts:g}" for at, watts in lines)]), encoding="utf-8")

    def rungs(self, called: Called, *options: str) -> dict[str, dict[str, Any]]:
        """Return the rungs of the run, by name."""
        done = called("cost", self.result, "--host-readings", self.file, *options, "--json")
        [found] = json.loads(done.stdout)
        return {rung["name"]: rung for rung in found["rungs"]}

    def change(self, part: str = "energy", **changes: object) -> None:
        """Change a part of the stored result."""
        file = self.result / "result.json"
        stored = json.loads(file.read_text(encoding="utf-8"))
        stored[part] |= changes
        file.write_text(json.dumps(stored), encoding="utf-8")


def test_readings_make_a_measured_host_that_facility_and_money_go_on_from(run: Run, called: Called) -> None:
    """350 W and 1.08 × what an H200 drew: 1.594, known to less than 1 %."""
    run.write(run.lines)
    found = run.rungs(called, "--pue", "1.1", "--price", "0.12")
    boards, host, facility, money = (found[name] for name in ("boards", "host", "facility", "money"))
    assert (host["state"], facility["state"], money["state"]) == ("measured", "modelled", "modelled")
    assert host["value"] / boards["value"] == pytest.approx(run.host_over_boards, rel=0.01)
    narrow, wide = ((rung["high"] - rung["low"]) / rung["value"] / 2 for rung in (boards, host))
    assert narrow < wide < narrow + 0.01
    assert money["value"] == pytest.approx(host["value"] * 1.1 * 0.12)
    assert money["found"] == "facility × 0.12 per kWh"
    called("form", "model-card", run.result, "--host-readings", run.file, "-o", "card.md")
    assert "| host | " in Path("card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("off_s", [-120, -98, -40, 60, 97])
def test_a_clock_that_is_off_is_seen_by_what_the_boards_drew(run: Run, called: Called, off_s: float) -> None:
    """There are readings in every window, of other instants: 1.4 where 1.594 is right."""
    run.write([(at_s + off_s, watts) for at_s, watts in run.lines])
    host = run.rungs(called)["host"]
    assert host["state"] == "unknown"
    told = re.search(r"readings follow the boards ([+-]\d+) s from where", host["found"])
    assert told
    assert float(told[1]) == pytest.approx(off_s, abs=7.5)


@pytest.mark.parametrize("zone", [None, "Z", "+02:00"])
def test_times_are_unix_seconds_or_tell_their_zone(run: Run, called: Called, zone: str | None) -> None:
    """Whatever the columns are called, and in any order, with others beside them."""
    rows = []
    for at_s, watts in run.lines:
        away_s = 7200 if zone == "+02:00" else 0
        told = f"{datetime.fromtimestamp(at_s + away_s, UTC):%FT%T.%f}{zone}" if zone else f"{at_s:.3f}"
        rows.append(f"srv1,{watts:g},{told}")
    # A row in which the meter did not answer.
    rows[5] = f"srv1,,{rows[5].split(',')[2]}"
    run.file.write_text("\n".join(["host,Power (W),Timestamp", *rows]), encoding="utf-8")
    found = run.rungs(called)
    assert found["host"]["value"] / found["boards"]["value"] == pytest.approx(run.host_over_boards, rel=0.01)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "Empty CSV file"),
        ("time,volts\n1,230\n", "columns time, volts: name one time and one watts"),
        ("power,temp\n1,230\n", "columns power, temp: name one time and one watts"),
        ("power_timestamp\n1\n", "columns power_timestamp: name one time and one watts"),
        ("time,watts\n2026-11-29T17:00:00,500\n2026-11-29T17:00:01,510\n", "with their zone"),
        ("time,watts\n10,500\n9,510\n", "{'time': 9, 'watts': 510}"),
        ("time,watts\n10,500\n11,-5\n", "{'time': 11, 'watts': -5}"),
        ("time,watts\n10,500\n11,0\n", "{'time': 11, 'watts': 0}"),
        ("time,watts\n10,500\n11,5e9\n", "{'time': 11, 'watts': 5000000000.0}"),
        ("time,watts\n10,500\n11,nan\n", "watts change"),
        ("time,watts\n10,500\n11,inf\n", "{'time': 11, 'watts': inf}"),
        ("time,watts\n1764400000000,500\n1764400001000,510\n", "{'time': 1764400000000, 'watts': 500}"),
        ("time,watts\n10,500\n11,500\n", "watts change"),
        ("time,watts\n10,500\n", "watts change"),
        ("time,watts\n", "watts change"),
        ("time,watts\n10,500 W\n", "'500 W'"),
        ("time,watts\n10,500\n11\n", "Expected 2 columns, got 1"),
    ],
)
def test_a_file_without_readings_is_refused(called: Called, content: str, line: str) -> None:
    """One line that says what is wrong and what to give, exit code 2."""
    Path("readings.csv").write_text(content, encoding="utf-8")
    ended = called("cost", BUNDLE, "--host-readings", "readings.csv")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert line in ended.stderr
    assert "give a CSV file of watts and times" in ended.stderr


def test_a_missing_file_and_two_hosts_are_refused(called: Called) -> None:
    """One line each."""
    missing = called("cost", BUNDLE, "--host-readings", "none.csv")
    both = called("cost", BUNDLE, "--host-readings", "none.csv", "--host", "1.7")
    assert (missing.returncode, both.returncode) == (2, 2)
    assert "--host-readings none.csv: No such file or directory; give a CSV file" in missing.stderr
    assert "give one of them" in both.stderr


def test_what_readings_do_not_tell_is_unknown_and_says_why(run: Run, called: Called) -> None:
    """No overlap or lead-in, a clock that is hours off, a long gap, another server, other GPUs, and an older record."""

    def said(lines: list[tuple[float, float]]) -> str:
        run.write(lines)
        found = run.rungs(called, "--pue", "1.1", "--price", "0.12")
        assert (found["host"]["state"], found["facility"]["state"]) == ("unknown", "unknown")
        assert found["money"]["found"] == "boards × 0.12 per kWh"
        return str(found["host"]["found"])

    for away_s in (-3600, 7200, 86_400 * 30):
        assert "restart 1: no readings for 42 of 42 s from 2026-11-29 02:32:4" in said(
            [(at_s + away_s, watts) for at_s, watts in run.lines]
        )
    middle = 2 * len(run.lines) // 5
    assert "the file has them from 2026-11-29 02:3" in said(run.lines[:middle])
    assert "restart 2: no readings for " in said(run.lines[:middle] + run.lines[middle + 60 :])
    assert "another machine" in said([(at_s, watts / 3) for at_s, watts in run.lines])
    windows = json.loads((run.result / "result.json").read_text(encoding="utf-8"))["energy"]["windows"]
    run.change(windows=windows | {"headline": "drained"})
    assert "windows begin less than 20 s after their passes" in said(run.lines)
    run.change(windows=windows)
    run.change(bystander_j={"GPU-2": 9.0})
    assert "other GPUs are in it" in said(run.lines)
    run.change(bystander_j={})
    run.change("environment", nodes=[OTHER_NODE])
    assert "other nodes held a part of the model" in said(run.lines)
    run.change("environment", nodes=[])
    record = run.result / "restarts/1/record.json"
    record.write_text(record.read_text(encoding="utf-8").replace('"started_ns"', '"started"'), encoding="utf-8")
    assert "restart 2: its record tells no time of day" in said(run.lines)


@pytest.mark.parametrize("factor", [1, 100])
def test_readings_of_many_digits_are_no_finer_than_a_meter(run: Run, called: Called, factor: int) -> None:
    """Means that a script made of readings, also where they are a hundred times as large."""
    random = np.random.default_rng(2)
    run.file.write_text(
        "\n".join(
            ["t_unix,w", *(f"{at_s:.9f},{factor * watts + random.normal(0, 3):.12f}" for at_s, watts in run.lines)]
        ),
        encoding="utf-8",
    )
    found = run.rungs(called)
    assert found["host"]["value"] / found["boards"]["value"] == pytest.approx(factor * run.host_over_boards, rel=0.01)

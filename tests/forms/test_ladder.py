"""Joules carried on to the host, the facility, money and carbon, by hand count."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from math import exp, hypot, log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.kept import OTHER_NODE, SERVED, kept
from seams import forms

if TYPE_CHECKING:
    from conftest import Called

ROOT = Path(__file__).resolve().parents[2]
# The kept figure and half its interval: what a page of the docs says, held to its records there.
JOULES, HALF = 0.3289550234, 0.004966329


def ladder(called: Called, *options: str) -> dict[str, dict[str, object]]:
    """Return the rungs of the kept figure, by name."""
    [found] = json.loads(called("cost", SERVED, *options, "--json").stdout)
    assert found["work"] == "output tokens"
    return {rung["name"]: rung for rung in found["rungs"]}


def test_a_million_tokens_by_hand_count(called: Called) -> None:
    """0.329 J × 10⁶ ÷ 3.6 × 10⁶ kWh, then × 1.72 × 1.09, × 0.12 per kWh and × 230 g; 680.64 W for GPU-hours."""
    options = ("--host", "1.72±0.2", "--pue", "1.09", "--price", "0.12", "--carbon", "230", "--embodied", "20")
    found = ladder(called, *options)
    kwh = JOULES / 3.6
    hand = {
        "boards": kwh,
        "host": kwh * 1.72,
        "facility": kwh * 1.72 * 1.09,
        "money": kwh * 1.72 * 1.09 * 0.12,
        "carbon, use": kwh * 1.72 * 1.09 * 230,
        "carbon, embodied": 0.3286517660 / 680.6376034662 / 3600 * 1e6 * 20,
    }
    assert {name: rung["value"] for name, rung in found.items()} == pytest.approx(hand, rel=1e-8)
    assert {name: rung["state"] for name, rung in found.items() if name != "boards"} == dict.fromkeys(
        list(hand)[1:], "modelled"
    )
    assert json.loads(called("cost", SERVED, "--json").stdout)[0]["audit"].startswith("publishable: 0.329 J")
    down, up = (hypot(HALF, log(1 + side * 0.2 / 1.72)) for side in (-1, 1))
    assert [found["boards"][end] for end in ("low", "high")] == pytest.approx([kwh * exp(-HALF), kwh * exp(HALF)])
    for name, value in (("host", hand["host"]), ("money", hand["money"])):
        ends = [value * exp(-down), value * exp(up)]
        assert [found[name][end] for end in ("low", "high")] == pytest.approx(ends, rel=1e-6)


def test_wide_factors_keep_both_ends(called: Called) -> None:
    """230 ± 150 g has the upper end (230 + 150) ÷ 230 of the figure; the ± of --embodied is its interval."""
    found = ladder(called, "--carbon", "230±150", "--embodied", "20±5")
    used, made = found["carbon, use"], found["carbon, embodied"]
    assert used["high"] == pytest.approx(JOULES / 3.6 * 380, rel=1e-4)
    assert used["low"] == pytest.approx(JOULES / 3.6 * 80, rel=1e-4)
    hand = 0.3286517660 / 680.6376034662 / 3600 * 1e6
    assert [made["low"], made["high"]] == pytest.approx([hand * 15, hand * 25])
    assert f"[{hand * 15:.4g}, {hand * 25:.4g}]" in called("cost", SERVED, "--embodied", "20±5").stdout


@pytest.mark.parametrize("price", ["0.12 EUR/kWh", "0.12 EUR", "0.12EUR", "0.12/kWh", "0.12 €/kWh", "0.12 / kWh"])
def test_a_price_may_name_its_currency(called: Called, price: str) -> None:
    """It is the unit of money, and printed."""
    money = ladder(called, "--price", price)["money"]
    assert money["value"] == pytest.approx(JOULES / 3.6 * 0.12, rel=1e-8)
    assert money["unit"] == ("EUR" if "EUR" in price else "€" if "€" in price else "")
    assert str(money["found"]).endswith(" per kWh")
    assert "/" not in str(money["found"])


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_money_of_what_is_not_publishable_says_so(called: Called, tmp_path: Path, status: str) -> None:
    """Status and audit stand below the rungs, and in every form."""
    made = kept(tmp_path / "made", {"status": status, "audit": None})
    assert f"audit: {status}; not audited" in called("cost", made, "--price", "0.12").stdout
    for kind in ("boamps", "ml-energy", "ai-energy-score", "model-card", "annex-xi"):
        called("form", kind, made, "-o", tmp_path / "x")
        assert f"{status}; not audited" in (tmp_path / "x").read_text(encoding="utf-8")


def test_a_rung_without_a_meter_or_factor_is_unknown(called: Called) -> None:
    """PUE says nothing about a host that nobody measured; money is then of the boards, and says so."""
    found = ladder(called, "--pue", "1.2", "--price", "0.12")
    assert [(rung["name"], rung["state"]) for rung in found.values()] == [
        ("boards", "measured"),
        ("host", "unknown"),
        ("facility", "unknown"),
        ("money", "modelled"),
    ]
    assert found["money"]["found"] == "boards × 0.12 per kWh"
    assert found["money"]["value"] == pytest.approx(JOULES / 3.6 * 0.12, rel=1e-8)


def test_a_result_without_joules_has_one_line(called: Called, tmp_path: Path) -> None:
    """Alone it is refused, by forms, too; beside others it is named, and their rungs stand."""
    no_gpu = {"budget": None, "energy.total_j": None, "energy.reason": "no NVIDIA driver: libnvidia-ml.so.1"}
    made = kept(tmp_path / "made", no_gpu)
    label = "vllm smollm2-135m-instruct closed 160"
    line = f"{label}: no joules per output token (no NVIDIA driver: libnvidia-ml.so.1)"
    for words in (("cost", made), ("cost", made, "--json"), ("form", "boamps", made, "-o", tmp_path / "x")):
        ended = called(*words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert line in ended.stderr
        assert "name a result that has joules, or measure where `wattdock doctor` finds a meter" in ended.stderr
    both = called("cost", made, SERVED).stdout.splitlines()
    assert both.count(line) == 1
    assert [text for text in both if ": for a million" in text] == [f"{label}: for a million output tokens"]


def test_intervals_of_products_hold() -> None:
    """Of a million draws of boards and two factors, 93 to 97 % of the products lie in the rung's interval."""
    draw = np.random.default_rng(1)
    boards = forms.Rung("boards", "measured", "", value=100.0, low=100 * exp(-0.02), high=100 * exp(0.02))
    wide = boards.times(forms.Factor.parsed("1.7±0.15", "--host"), "host", "")
    top = wide.times(forms.Factor.parsed("1.2±0.1", "--pue"), "facility", "")
    truth = 100 * np.exp(draw.normal(0, 0.02 / 1.96, 1_000_000))
    truth = truth * draw.normal(1.7, 0.15 / 1.96, len(truth)) * draw.normal(1.2, 0.1 / 1.96, len(truth))
    assert top.low
    assert top.high
    assert 0.93 < np.mean((truth > top.low) & (truth < top.high)) < 0.97
    assert [np.mean(truth < top.low), np.mean(truth > top.high)] == pytest.approx([0.025, 0.025], abs=0.01)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--pue", "x"), "--pue x: write a number above 0"),
        (("--pue", "0"), "--pue 0: write a number above 0"),
        (("--price", "-1"), "--price -1: write a number above 0"),
        (("--price", "0,12"), "--price 0,12: a comma is no decimal point; write a number above 0"),
        (("--host", "1.2±1.3"), "--host 1.2±1.3: write a number above 0"),
        (("--carbon", "nan5"), "--carbon nan5: write a number above 0"),
        (
            ("--price", "30ct/kWh"),
            "--price 30ct/kWh: ct is no currency of three letters; write a number above 0, as in 0.12 or 0.12 EUR/kWh",
        ),
        (("--carbon", "0.4kg"), "--carbon 0.4kg: write a number above 0, as in 230 or 230±20, in g CO₂e/kWh"),
        (("--price", "0.12/h"), "--price 0.12/h: write a number above 0"),
        (("--pue", "0.109"), "--pue 0.109: the whole takes no less than its part"),
        (("--host", "1.2±0.3"), "--host 1.2±0.3: the whole takes no less than its part"),
        (("--carbon", "230 EUR"), "--carbon 230 EUR: write a number above 0"),
    ],
)
def test_a_factor_that_is_none_is_refused(called: Called, options: tuple[str, str], line: str) -> None:
    """One line with the value seen, exit code 2."""
    ended = called("cost", SERVED, *options)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert line in ended.stderr


def test_a_country_comes_from_codecarbons_data(called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figure, year and the package's version are printed; without the package one line says how to get it."""

    class Package:
        version = "3.3.2"

        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    place = tmp_path / "codecarbon/data/private_infra/global_energy_mix.json"
    place.parent.mkdir(parents=True)
    place.write_text(
        '{"FRA": {"carbon_intensity": 56.039, "country_name": "France", "year": 2023}, "CAF": {"carbon_intensity": 0}}',
        encoding="utf-8",
    )
    monkeypatch.setattr(forms.rungs, "distribution", lambda _: Package())
    carbon = ladder(called, "--carbon", "fra")["carbon, use"]
    assert carbon["value"] == pytest.approx(JOULES / 3.6 * 56.039, rel=1e-8)
    assert carbon["found"] == "boards × 56.039 (France, 2023, codecarbon 3.3.2) g/kWh"
    for country in ("XYZ", "CAF"):
        assert f"--carbon {country}: no country" in called("cost", SERVED, "--carbon", country).stderr

    def missing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(forms.rungs, "distribution", missing)
    assert "CodeCarbon, which knows countries, is not installed" in called("cost", SERVED, "--carbon", "FRA").stderr


@pytest.mark.parametrize(
    ("host", "changes", "state", "said"),
    [
        (
            {"package-0": 35_541.37968448489, "package-0-dram": 0.0},
            {},
            "measured",
            "boards + RAPL (package-0, package-0-dram)",
        ),
        ({"package-0": 35_541.4, "package-1": None}, {}, "unknown", "it has gaps"),
        (
            {"package-0": 35_541.4},
            {"energy.bystander_j": {"GPU-2": 9.0}},
            "unknown",
            "other GPUs or other work are in it",
        ),
        (
            {"package-0": 35_541.4},
            {"environment.nodes": [OTHER_NODE]},
            "unknown",
            "other nodes held a part of the model",
        ),
    ],
)
def test_rapl_counts_as_host_where_it_is_of_this_work_alone(
    called: Called, tmp_path: Path, host: dict[str, float], changes: dict[str, object], state: str, said: str
) -> None:
    """A fifth of the boards' joules beside them; no facility is made of a host without fans and power supplies."""
    kept(tmp_path / "made", {"energy.host_j": host} | changes)
    [found] = json.loads(called("cost", tmp_path / "made", "--pue", "1.2", "--json").stdout)
    _, rung, facility = found["rungs"]
    assert (rung["state"], facility["state"]) == (state, "unknown")
    assert said in rung["found"]
    if state == "measured":
        [money] = json.loads(called("cost", tmp_path / "made", "--price", "0.12", "--json").stdout)[0]["rungs"][3:]
        assert "so no interval" in rung["found"]
        assert (money["low"], money["found"]) == (None, "host × 0.12 per kWh; no interval, since host has none")
        assert rung["value"] == pytest.approx(JOULES / 3.6 * 1.2, rel=1e-8)


def test_the_page_says_what_its_command_prints(called: Called) -> None:
    """Every figure and interval of its table, to the digits that it gives."""
    page = (ROOT / "docs/how-to/beyond-the-board.md").read_text(encoding="utf-8")
    said = {cells[0]: cells[1] for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) == 3}
    words = ("--again", "--host", "1.72±0.2", "--pue", "1.09", "--price", "0.12", "--carbon", "230", "--json")
    [told_by_cost] = json.loads(called("cost", ROOT / "docs/measurements/data/vllm-h200.tar", *words).stdout)
    for name, rung in ((each["name"], each) for each in told_by_cost["rungs"]):
        told = [float(number) for number in re.findall(r"\d+\.\d+", said[name])]
        assert told == [float(f"{rung[end]:.3g}") for end in ("value", "low", "high")]

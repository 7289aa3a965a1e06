"""A result by the measure of the AI Energy Score: Wh by hand count, and each of its conditions."""

from __future__ import annotations

import re
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import fake_nvml
import pytest
import yaml
from make.kept import SERVED, kept, kept_document
from make.machine import VirtualMachine

from wattdock.config import load_study

if TYPE_CHECKING:
    from conftest import Called

ROOT = Path(__file__).resolve().parents[2]
# The kept figure and half its interval.
JOULES, HALF = 0.3289550234, 0.004966329


def score(called: Called, result: Path, file: Path) -> tuple[str, dict[str, str]]:
    """Return the figure by the AI Energy Score's measure, and whether each condition was met."""
    called("form", "ai-energy-score", result, "-o", file)
    text = file.read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return text, {name: met for name, _, _, met in lines[1:]}


def test_wh_of_a_thousand_queries_by_hand_count(called: Called, tmp_path: Path) -> None:
    """16 tokens, which a staggered start did not shorten, × 0.329 J ÷ 3.6; no condition is met, nor by its weights."""
    text, met = score(called, SERVED, tmp_path / "score.md")
    found = re.search(r"\*\*([\d.]+) Wh per 1,000 queries\*\* \[([\d.]+), ([\d.]+)\] \(95 %\)", text)
    assert found
    wh = JOULES * 16 / 3.6
    ends = [wh, wh * exp(-HALF), wh * exp(HALF)]
    assert [float(number) for number in found.groups()] == pytest.approx(ends, rel=1e-3)
    assert set(met.values()) == {"no"}
    assert "| weights | the model's own | real, unpacked from 4 bits (Q4_1) | no |" in text
    assert "1 × NVIDIA H200" in text


# What the score's own runs have: ten of 1,000 queries, one at a time, on an H100 of 80 GB.
ASKED = {
    "environment.model.kind": "hub",
    "environment.gpu_names": ["NVIDIA H100 80GB HBM3"],
    "environment.gpu_vram_gb": [85.5],
    "environment.dataset": "text_generation.jsonl",
    "config.workload.batch_size": 1,
    "performance.requests": 10_000,
    "config.workload.max_output_tokens": 10,
    "energy.passes": kept_document()["energy"]["passes"][:1] * 10,
}
UNKNOWN = {"prompts": "unknown"}
# Answers of 300 tokens on average, where the model ended them.
ENDED_EARLY = {
    "config.workload.staggered_start": False,
    "performance.output_tokens": 3_000_000,
    "procedure.mix": [mix | {"ended_early": 9} for mix in kept_document()["procedure"]["mix"]],
}
# No result says whether a model thought.
THOUGHTS = {"tokens of an answer": "unknown"} | UNKNOWN


@pytest.mark.parametrize(
    ("changes", "unmet"),
    [
        ({}, UNKNOWN),
        ({"environment.gpu_vram_gb": [102.0]}, {"GPUs": "no"} | UNKNOWN),
        ({"environment.gpu_vram_gb": []}, {"GPUs": "unknown"} | UNKNOWN),
        ({"environment.gpu_names": ["NVIDIA H200"], "environment.gpu_vram_gb": []}, {"GPUs": "no"} | UNKNOWN),
        ({"environment.model.weights": "random(uniform)"}, {"weights": "no"} | UNKNOWN),
        ({"environment.model.weights": "real, Q4_1"}, {"weights": "unknown"} | UNKNOWN),
        ({"environment.gpu_names": []}, {"GPUs": "no"} | UNKNOWN),
        ({"environment.dataset": "bundled"}, {"prompts": "no"}),
        ({"config.workload.max_output_tokens": 300}, {"tokens of an answer": "no"} | UNKNOWN),
        (ENDED_EARLY | {"config.workload.max_output_tokens": 300}, {"tokens of an answer": "no"} | UNKNOWN),
        (ENDED_EARLY | {"config.workload.max_output_tokens": 8192}, THOUGHTS),
        ({"performance.requests": 9_000}, {"queries in a run": "no"} | UNKNOWN),
    ],
)
def test_each_condition_of_the_score_is_judged(
    called: Called, tmp_path: Path, changes: dict[str, object], unmet: dict[str, str]
) -> None:
    """Whether a file holds the score's prompts is unknown: nobody publishes its digest."""
    _, met = score(called, kept(tmp_path / "made", ASKED | changes), tmp_path / "score.md")
    assert {name: answer for name, answer in met.items() if answer != "yes"} == unmet


def test_the_example_meets_what_a_study_can(called: Called, tmp_path: Path) -> None:
    """Ten runs of 1,000 queries, one at a time, with answers of 10 tokens; joules are of 300 W and steps of 0.1 s."""
    machine = VirtualMachine(tmp_path, {fake_nvml.uuid_of(1): lambda _: 300.0})
    settings = yaml.safe_load((ROOT / "examples/ai-energy-score.yaml").read_text(encoding="utf-8"))["defaults"]
    del settings["pytorch"]
    study = load_study(settings | {"backend": "fake", "model": "shape:tiny-llama", "fake": {"step_s": 0.1}}, {})
    machine.run(study)
    text, met = score(called, machine.results, tmp_path / "score.md")
    assert {name for name, answer in met.items() if answer != "yes"} == {"GPUs", "weights", "prompts"}
    found = re.search(r"\*\*([\d.]+) Wh per 1,000 queries", text)
    assert found
    assert float(found[1]) == pytest.approx(300 * 1.0 * 1000 / 3600, rel=0.02)

"""Forms held to what their publishers' schemas ask."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import jsonschema
import pytest
from make.kept import SERVED, TRAINED, kept, kept_document
from seams.console import Form
from seams.forms import FORMS

if TYPE_CHECKING:
    from conftest import Called

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = ROOT / "docs/measurements/data/pytorch-h200.tar"
# The kept figure: what a page of the docs says, held to its records there.
JOULES = 0.3289550234
FIGURE = (
    "0.3290 J per output token [0.3273, 0.3306] (95 %); the declared work, requests of 6,000 tokens in and 16 out on "
    "average, 375.0 in for each out (synthetic), 160 in flight"
)


# What Boavizta/BoAmps' report_schema.json and the schemas that it names (commit 3bfefec8) ask of a report.
NAMED_GPU = {"required": ["componentType", "nbComponent"], "properties": {"nbComponent": {"type": "integer"}}}
BOAMPS = {
    "required": ["task", "measures", "infrastructure"],
    "properties": {
        "header": {"required": ["reportDatetime"], "properties": {"reportStatus": {"enum": ["draft", "final"]}}},
        "task": {
            "required": ["taskStage", "taskFamily", "algorithms", "dataset"],
            "properties": {
                "nbRequest": {"type": "number"},
                "algorithms": {"minItems": 1, "items": {"properties": {"parametersNumber": {"type": "number"}}}},
                "dataset": {
                    "minItems": 1,
                    "items": {
                        "required": ["dataUsage", "dataType"],
                        "properties": {
                            "dataUsage": {"enum": ["input", "output"]},
                            "dataType": {"enum": ["token", "other"]},
                            "dataQuantity": {"type": "number"},
                        },
                    },
                },
            },
        },
        "measures": {
            "minItems": 1,
            "items": {
                "required": ["measurementMethod", "powerConsumption"],
                "properties": {name: {"type": "number"} for name in ("powerConsumption", "measurementDuration")},
            },
        },
        "infrastructure": {
            "required": ["infraType", "components"],
            "properties": {
                "infraType": {"enum": ["publicCloud", "privateCloud", "onPremise", "other"]},
                "components": {"minItems": 1, "items": NAMED_GPU},
            },
        },
    },
}


def test_boamps_report_holds_to_its_schema(called: Called, tmp_path: Path) -> None:
    """Inference and training; joules go there and back to the last digit."""
    called("form", "boamps", SERVED, "-o", tmp_path / "served.json")
    report = json.loads((tmp_path / "served.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, BOAMPS)
    [stored] = json.loads(called("show", SERVED, "--json").stdout)
    assert report["measures"][0]["powerConsumption"] * 3.6e6 == pytest.approx(stored["energy"]["total_j"], rel=1e-15)
    counts = {part["dataUsage"]: part["dataQuantity"] for part in report["task"]["dataset"]}
    assert counts == {"input": 202_494_000, "output": 536_183}
    assert "powerConsumption is of whole passes; the figure per unit is of" in report["task"]["taskDescription"]
    assert not report.keys() & {"quality", "system"}
    broken = report | {"task": {**report["task"], "nbRequest": "many"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, BOAMPS)
    called("form", "boamps", f"{TRAINED}:mode=--fsdp gpus=2", "-o", tmp_path / "trained.json")
    trained = json.loads((tmp_path / "trained.json").read_text(encoding="utf-8"))
    jsonschema.validate(trained, BOAMPS)
    [gpus, *_] = trained["infrastructure"]["components"]
    assert (trained["task"]["taskStage"], gpus["nbComponent"], gpus["memorySize"]) == ("other", 2, 150.754820096)
    assert trained["task"]["dataset"] == [{"dataUsage": "input", "dataType": "other", "dataQuantity": 2304}]
    [measure] = trained["measures"]
    assert measure["powerConsumption"] * 3.6e6 / 2304 == pytest.approx(15.458, rel=1e-4)
    assert measure["measurementDuration"] == pytest.approx(35615.4 / 1357, rel=2e-3)


# What ML.ENERGY's leaderboard (src/types.ts, commit 0cd52dab) takes as given of a configuration, with its types.
NAMES = ("model_id", "nickname", "gpu_model", "architecture", "weight_precision")
COUNTS = ("num_gpus", "max_num_seqs", "tensor_parallel", "expert_parallel", "data_parallel")
ENERGIES = ("energy_per_token_joules", "energy_per_request_joules", "avg_power_watts")
SPEEDS = ("output_throughput_tokens_per_sec", "avg_output_len", "avg_batch_size", "median_itl_ms")
OTHERS = ("total_params_billions", "activated_params_billions", "p90_itl_ms", "p95_itl_ms", "p99_itl_ms")
TYPES = {
    name: {"type": kind}
    for kind, names in {"string": NAMES, "integer": COUNTS, "number": (*ENERGIES, *SPEEDS, *OTHERS)}.items()
    for name in names
}
ML_ENERGY = {
    "required": ["task", "task_display_name", "configurations"],
    "properties": {
        "task": {"type": "string"},
        "task_display_name": {"type": "string"},
        "configurations": {"minItems": 1, "items": {"required": list(TYPES), "properties": TYPES}},
    },
}


@pytest.mark.parametrize("result", [SERVED, ROUNDS], ids=["continuous", "in rounds"])
def test_ml_energys_file_gives_figures_back_to_the_digit(called: Called, tmp_path: Path, result: Path) -> None:
    """Their types hold, and the audit of others' files reads what was stored and finds the figures consistent."""
    called("form", "ml-energy", result, "--again", "-o", tmp_path / "task.json")
    written = json.loads((tmp_path / "task.json").read_text(encoding="utf-8"))
    jsonschema.validate(written, ML_ENERGY)
    [stored] = json.loads(called("show", result, "--again", "--json").stdout)
    [found] = json.loads(called("audit", tmp_path / "task.json", "--json").stdout)
    energy, done, row = stored["energy"], stored["performance"], found["row"]
    assert row["energy_per_output_token_j"] == pytest.approx(energy["measured_per_output_token_j"], rel=1e-15)
    assert row["output_tokens_per_s"] == done["output_tokens_per_s"]
    assert row["power_w"] == energy["mean_power_w"]
    assert done["output_tokens"] / done["requests"] == pytest.approx(16, rel=0.01)
    assert row["output_tokens_per_request"] == 16
    assert row["energy_per_request_j"] == pytest.approx(16 * energy["measured_per_output_token_j"], rel=1e-15)
    assert written["configurations"][0]["architecture"] == "Dense"
    assert row["active_parameters"] == pytest.approx(stored["compute"]["active_weights"], rel=1e-15)
    assert (row["gpu"], row["gpu_count"], row["in_flight"]) == ("NVIDIA H200", 1, 160)
    assert row["mean_in_flight"] == pytest.approx(160, rel=0.003)
    assert found["answers"]["wrong"] == "nothing against"
    assert "(95 %)" in written["wattdock"]["figure"]


@pytest.mark.parametrize(
    ("changes", "architecture", "active"),
    [
        ({"active_weights": 7_504_658_432, "total_weights": 8_029_995_008, "has_experts": False}, "Dense", 8.029995008),
        ({"active_weights": 3_000_000_000, "total_weights": 8_029_995_008, "has_experts": True}, "MoE", 3.0),
        ({"active_weights": 7_504_658_432, "total_weights": 8_029_995_008}, None, None),
    ],
)
def test_experts_alone_make_an_moe(
    called: Called, tmp_path: Path, changes: dict[str, object], architecture: str | None, active: float | None
) -> None:
    """An input embedding of its own, as Llama-3.1-8B has, is no expert; an older result does not tell."""
    made = kept(tmp_path / "made", {f"compute.{name}": value for name, value in changes.items()})
    ended = called("form", "ml-energy", made, "-o", tmp_path / "task.json")
    if architecture is None:
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "asks for architecture, not measured here; if an older wattdock" in ended.stderr
        return
    [found] = json.loads((tmp_path / "task.json").read_text(encoding="utf-8"))["configurations"]
    assert (found["architecture"], found["activated_params_billions"]) == (architecture, active)
    assert found["total_params_billions"] == 8.029995008


CONVERSATIONS = {"source": "synthetic", "input_tokens": 512, "turns": 6, "shared_prefix_tokens": 1000}
OLD_FILE = {"config.workload.prompts.source": "/data/trace.jsonl", "config.workload.max_output_tokens": 64}


@pytest.mark.parametrize(
    ("changes", "said", "tokens"),
    [
        ({"performance.output_tokens": 400_000}, "6,000 tokens in and 16 out on average, 375.0 in for each out", 16),
        # 1,000 of a prefix, 512 and 256 for each turn before, 512 of its own: 1000 + 512 × 3.5 + 256 × 2.5.
        (
            {"config.workload.prompts": CONVERSATIONS, "config.workload.max_output_tokens": 256},
            "3,432 tokens in and 256 out on average, 13.4 in for each out",
            256,
        ),
        (
            OLD_FILE | {"procedure.prompt_tokens": 5000.0, "procedure.limit_tokens": 12.5},
            "5,000 tokens in and 12.5 out on average, 400.0 in for each out",
            12.5,
        ),
        # A result of before the file's lengths were kept.
        (OLD_FILE, "6,000 tokens in on average", None),
        (OLD_FILE | {"config.workload.staggered_start": False}, "6,000 tokens in and 15.887 out", 536_183 / 33_749),
    ],
)
def test_lengths_of_answers_are_the_declared_ones_in_every_form(
    called: Called, tmp_path: Path, changes: dict[str, object], said: str, tokens: float | None
) -> None:
    """Of a file they are its own, of conversations those of all that was said; the default is nobody's."""
    made = kept(tmp_path / "made", changes | {"config.vllm.enable_prefix_caching": True})
    for kind in ("model-card", "boamps", "annex-xi"):
        called("form", kind, made, "-o", tmp_path / "x")
        assert f"requests of {said}" in (tmp_path / "x").read_text(encoding="utf-8")
    ended = called("form", "ml-energy", made, "-o", tmp_path / "task.json")
    if tokens is None:
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "write the form with --again" in ended.stderr
        return
    [found] = json.loads((tmp_path / "task.json").read_text(encoding="utf-8"))["configurations"]
    assert found["avg_output_len"] == tokens


def test_answers_that_ended_early_tell_no_length(called: Called, tmp_path: Path) -> None:
    """How much a staggered start took from them is unknown: one line, nothing is written."""
    mixes = [mix | {"ended_early": 3} for mix in kept_document()["procedure"]["mix"]]
    made = kept(tmp_path / "made", {"procedure.mix": mixes})
    for kind in ("ml-energy", "ai-energy-score"):
        ended = called("form", kind, made, "-o", tmp_path / "x")
        assert (ended.returncode, ended.stderr.count("\n"), (tmp_path / "x").exists()) == (2, 1, False)
        assert "no tokens per request: answers ended early" in ended.stderr
    whole = kept(tmp_path / "whole", {"procedure.mix": mixes, "config.workload.staggered_start": False})
    called("form", "ml-energy", whole, "-o", tmp_path / "x")
    [found] = json.loads((tmp_path / "x").read_text(encoding="utf-8"))["configurations"]
    assert found["avg_output_len"] == 536_183 / 33_749


def test_an_untied_embedding_is_seen_in_the_records(called: Called, tmp_path: Path) -> None:
    """The kept Llama-3.1-8B, analysed again, is dense; 8.03e9 weights are active."""
    untied = f"{ROOT / 'docs/measurements/data/splits-two-h200.tar'}:tensor_parallel_size=1"
    ended = called("form", "ml-energy", untied, "--again", "-o", tmp_path / "task.json")
    assert ended.returncode == 0, ended.stderr
    [found] = json.loads((tmp_path / "task.json").read_text(encoding="utf-8"))["configurations"]
    assert (found["architecture"], found["avg_output_len"]) == ("Dense", 256)
    assert found["avg_batch_size"] == pytest.approx(128, rel=0.001)
    assert found["activated_params_billions"] == found["total_params_billions"] == 8.029995008


def test_ml_energys_file_lacks_no_number(called: Called, tmp_path: Path) -> None:
    """Times between tokens that nobody saw, and a command, are refused in a line."""
    older = called("form", "ml-energy", SERVED, "-o", tmp_path / "x")
    assert "asks for avg_batch_size, not measured here; if an older wattdock measured, write the form with --again" in (
        older.stderr
    )
    kept(tmp_path / "made", {"performance.itl": None, "performance.itl_reason": "not streamed"})
    refused = called("form", "ml-energy", tmp_path / "made", "-o", tmp_path / "x")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "asks for median_itl_ms, p90_itl_ms, p95_itl_ms, p99_itl_ms, not measured here" in refused.stderr
    command = called("form", "ml-energy", f"{TRAINED}:mode=--fsdp gpus=2", "-o", tmp_path / "x")
    assert "takes results with requests, a command has none" in command.stderr
    assert not (tmp_path / "x").exists()


def test_a_form_may_be_of_the_records_analysed_again(called: Called, tmp_path: Path) -> None:
    """The kept figure again; without the records one line says what is lacking."""
    stored, again = (json.loads(called("cost", SERVED, "--json", *more).stdout) for more in ((), ("--again",)))
    assert again[0]["rungs"][0]["value"] == pytest.approx(stored[0]["rungs"][0]["value"], rel=0.002)
    assert called("form", "annex-xi", SERVED, "--again", "-o", tmp_path / "x.md").returncode == 0
    lacking = called("form", "annex-xi", kept(tmp_path / "made"), "--again", "-o", tmp_path / "y.md")
    assert (lacking.returncode, lacking.stderr.count("\n"), (tmp_path / "y.md").exists()) == (7, 1, False)


def test_texts_for_people_have_figure_interval_and_boundary(called: Called, tmp_path: Path) -> None:
    """Of annex XI, the statement has kWh with its window, method, boundary, what is unknown, and what it is not."""
    options = ("--carbon", "230", "--host", "1.7", "--pue", "1.2")
    called("form", "model-card", SERVED, "-o", tmp_path / "card.md", *options)
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert card.startswith("## Energy")
    assert f"| carbon, use | {JOULES / 3.6 * 1.7 * 1.2 * 230:.4g} [" in card
    assert f"**{FIGURE}**" in card
    called("form", "annex-xi", SERVED, "-o", tmp_path / "annex.md")
    annex = (tmp_path / "annex.md").read_text(encoding="utf-8")
    for part in (
        "0.049363 kWh in 260.9 s",
        "of whole passes; the figure per unit is of the declared work, by the window: steady state",
        "not the model's training",
        FIGURE,
        "counter",
        "GPU boards as",
        "sensor gain",
        "publishable",
    ):
        assert part in annex


def test_a_form_is_of_one_result_of_its_kind(called: Called, tmp_path: Path) -> None:
    """One line each; nothing is written."""
    several = called("form", "boamps", TRAINED, "-o", tmp_path / "x")
    unknown = called("form", "xml", SERVED, "-o", tmp_path / "x")
    assert (several.returncode, unknown.returncode) == (2, 2)
    assert "4 results, and `form` takes one" in several.stderr
    command = called("form", "ml-energy", f"{TRAINED}:mode=--fsdp gpus=2", "-o", "x")
    assert "a command has none; take boamps, model-card, annex-xi" in command.stderr
    assert "no experiment of" in called("form", "boamps", f"{TRAINED}:x", "-o", "x").stderr
    assert "FORM xml is not one of boamps" in unknown.stderr
    # A wrong form is told before what results there are; results are named as the command takes them.
    assert called("form", "xml", TRAINED, "-o", tmp_path / "x").stderr == unknown.stderr
    [place] = re.findall(r"name one of '(.+?)'", several.stderr)
    assert called("form", "boamps", place, "-o", tmp_path / "y").returncode == 0
    assert get_args(Form) == tuple(FORMS)
    assert not (tmp_path / "x").exists()

"""Results that others published: read in each origin's form, and judged by their own figures and those beside them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from make.stored import stored
from refused import raises

from wattdock.errors import ConfigError
from wattdock.imported import Imported, audit_rows, read_rows

if TYPE_CHECKING:
    from conftest import Called

# Files as each origin writes them, with figures made up here: 2 GPUs, 1,000 tokens/s, 0.8 J/token, 800 W where told.
ML_ENERGY = {
    "task": "chat",
    "configurations": [
        {
            "model_id": "a/b",
            "gpu_model": "H100",
            "num_gpus": 2,
            "weight_precision": "fp8",
            "max_num_seqs": 8,
            "activated_params_billions": 3.0,
            "avg_batch_size": 7.9,
            "avg_output_len": 500.0,
            "tensor_parallel": 2,
            "output_throughput_tokens_per_sec": 1000.0,
            "energy_per_token_joules": 0.8,
            "avg_power_watts": 800.0,
            "energy_per_request_joules": 400.0,
        }
    ],
}
AIPERF = {
    "schema_version": "1.5",
    "input_config": {"endpoint": {"model_names": ["a/b"]}, "loadgen": {"concurrency": 8}},
    "telemetry_data": {"endpoints": {"host:9400": {"gpus": {"gpu_0": {"gpu_name": "NVIDIA H100 80GB HBM3"}}}}},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1000.0},
    "request_count": {"unit": "requests", "avg": 200.0},
    "output_sequence_length": {"unit": "tokens", "avg": 500.0},
    "total_osl": {"unit": "tokens", "avg": 100_000.0},
    "benchmark_duration": {"unit": "sec", "avg": 100.0},
    "nvidia_total_gpu_energy": {"unit": "J", "avg": 80_000.0},
    "nvidia_total_gpu_power": {"unit": "W", "avg": 800.0},
}
AIPERF_PHASES = {
    "models": {"items": [{"name": "a/b"}]},
    "phases": [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "concurrency": 8}],
}
INFERENCEX = {
    "hw": "h200-nv",
    "model": "a/b",
    "framework": "vllm",
    "image": "vllm:1",
    "precision": "fp8",
    "conc": 8,
    "isl": 1024,
    "osl": 500,
    "tp": 2,
    "pp": 1,
    "output_tput_per_gpu": 500.0,
    "is_multinode": False,
    "avg_total_gpu_power_w": 800.0,
    "total_gpu_energy_j": 80_000.0,
    "joules_per_output_token": 0.8,
}
INFERENCEX_API = {
    "hardware": "h200",
    "model": "a/b",
    "framework": "vllm",
    "precision": "fp8",
    "conc": 8,
    "decode_tp": 2,
    "isl": 1024,
    "osl": 500,
    "run_url": "https://example.org/runs/1",
    "is_multinode": False,
    "metrics": {"output_tput_per_gpu": 500.0, "pp": 1, "avg_total_gpu_power_w": 800.0, "joules_per_output_token": 0.8},
}
VLLM = {
    "backend": "vllm",
    "model_id": "a/b",
    "max_concurrency": 8,
    "request_rate": "inf",
    "duration": 100.0,
    "completed": 200,
    "total_input_tokens": 204_800,
    "total_output_tokens": 100_000,
    "output_throughput": 1000.0,
}
LLM_D_1 = """\
scenario:
  model: {name: a/b, quantization: fp8}
  host: {accelerator: [{model: H100, count: 1}, {model: H100, count: 1}]}
  platform: {engine: [{name: vllm, version: "1"}]}
metrics:
  time: {duration: 100.0}
  requests: {total: 200, output_length: {mean: 500}}
  throughput: {output_tokens_per_sec: 1000.0}
"""
LLM_D_2 = """\
version: "0.2"
scenario:
  stack:
    - standardized:
        {tool: llm-d, tool_version: "1", replicas: 2, model: {name: a/b}, accelerator: {model: H100, count: 1}}
  load: {standardized: {concurrency: 8, rate_qps: 10}}
results:
  request_performance:
    aggregate: {requests: {total: 200, output_length: {mean: 500}}, throughput: {output_token_rate: {mean: 1000.0}}}
"""
CODECARBON = """\
project_name,run_id,duration,gpu_power,gpu_energy,energy_consumed,gpu_count,gpu_model
mine,1,100,790,0.0222222222,0.03,2,2 x NVIDIA H200
idle,2,100,0,0,0.001,,
"""
MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs/measurements"
SMOLLM2 = MEASUREMENTS / "data/smollm2-h200.tar"
SPEED = {"model": "a/b", "output_tokens_per_s": 1000.0, "in_flight": 8}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content", "origin", "told"),
    [
        ("chat.json", ML_ENERGY, "ML.ENERGY", SPEED | {"gpu_count": 2, "active_parameters": 3e9, "workload": "chat"}),
        ("a.json", AIPERF, "AIPerf", SPEED | {"gpu": "NVIDIA H100 80GB HBM3", "energy_j": 80_000, "window_s": 100}),
        ("new.json", AIPERF | {"input_config": AIPERF_PHASES}, "AIPerf", SPEED | {"output_tokens": 100_000}),
        ("agg.json", [INFERENCEX], "InferenceX", SPEED | {"gpu_count": 2, "power_w": 800, "engine_version": "vllm:1"}),
        ("api.json", {"rows": [INFERENCEX_API]}, "InferenceX", SPEED | {"gpu_count": 2, "joules_per_token": 0.8}),
        ("nodes.json", [INFERENCEX | {"is_multinode": True}], "InferenceX", {"gpu_count": None, "power_w": 800}),
        ("bench.json", VLLM, "vLLM bench", SPEED | {"output_tokens": 100_000, "joules_per_token": None}),
        ("two.jsonl", f"{json.dumps(VLLM)}\n\n{json.dumps(VLLM)}\n", "vLLM bench", SPEED),
        # An object at the beginning of a line makes no JSON lines of a document.
        ("list.json", f'{{"rows": [\n{json.dumps(INFERENCEX)}\n]}}', "InferenceX", SPEED),
        ("report.yaml", LLM_D_1, "llm-d-benchmark 0.1", {"gpu_count": 2, "precision": "fp8", "requests": 200}),
        ("report.yaml", LLM_D_2, "llm-d-benchmark 0.2", SPEED | {"gpu_count": 2, "engine": "llm-d"}),
        (
            "emissions.csv",
            CODECARBON,
            "codecarbon",
            {"energy_j": pytest.approx(80_000), "window_s": 100, "gpu_count": 2, "gpus": "2 × NVIDIA H200"},
        ),
    ],
)
def test_each_origins_file_becomes_rows_with_its_figures_in_our_units(
    tmp_path: Path, name: str, content: Any, origin: str, told: dict[str, Any]
) -> None:
    """Each figure as the origin's own documentation defines it; what is not told is unknown."""
    row = read_rows(write(tmp_path / name, content))[0]
    assert (row.origin, {field: getattr(row, field) for field in told}) == (origin, told)


def test_a_row_links_to_where_it_was_published(tmp_path: Path) -> None:
    """The file's place, and the row's in it; a row that names its own address keeps it."""
    file = write(tmp_path / "chat.json", ML_ENERGY)
    assert read_rows(file)[0].link == f"{file}#/configurations/0"
    assert read_rows(write(tmp_path / "api.json", [INFERENCEX_API]))[0].link == "https://example.org/runs/1"


def row(**changed: Any) -> Imported:
    """A row that nothing speaks against: half an H200's power, figures that agree, a long window."""
    told = {"model": "a/b", "gpu": "H200", "gpu_count": 2, "precision": "bfloat16", "in_flight": 8, "sensor_s": 0.1}
    figures = {"output_tokens_per_s": 1000, "energy_per_output_token_j": 0.8, "power_w": 800, "window_s": 100}
    own = {"origin": "here", "link": "#", "active_parameters": 8e9}
    return Imported(**(own | told | figures | changed))


def found(rows: list[Imported], name: str) -> tuple[str, str] | None:
    """The status and figure of a check of the first row."""
    return next(((check.status, check.figure) for check in audit_rows(rows)[0].checks if check.name == name), None)


@pytest.mark.parametrize(
    ("rows", "name", "status", "figure"),
    [
        # A GPU with more requests at once is slower: a B200 among ML.ENERGY's rows gave 18 % less at 128 than at 64.
        ([row(in_flight=16, output_tokens_per_s=820), row()], "speed at more in flight", "warn", "-18.0% against 8"),
        ([row(in_flight=16, output_tokens_per_s=970), row()], "speed at more in flight", "pass", "-3.0% against 8"),
        # Equal settings, 10 and 19 % apart there.
        ([row(), row(energy_per_output_token_j=0.952)], "repeats", "fail", "2 rows of equal settings, 19.0% apart"),
        ([row(), row(energy_per_output_token_j=0.824)], "repeats", "pass", "3.0% apart"),
        ([row(), row(link="#again")], "repeats", "unknown", "one row"),
        ([row(), row(precision="fp8", energy_per_output_token_j=0.5)], "repeats", "unknown", "one row"),
        ([row(power_w=1480)], "power limit", "fail", "740 W for each GPU"),
        ([row(power_w=1460)], "power limit", "pass", "730 W for each GPU"),
        ([row(power_w=None, energy_j=148_000)], "power limit", "fail", "740 W for each GPU"),
        ([row(gpu="Apple M1")], "power limit", "unknown", "Apple M1"),
        ([row(power_w=880)], "figures agree", "fail", "÷ (power_w) = 0.909"),
        ([row(power_w=808)], "figures agree", "pass", "0.990"),
        ([row(energy_j=80_000, output_tokens=101_000)], "figures agree", "pass", "1.010 (4 compared)"),
        ([row(requests=150, output_tokens_per_request=500)], "figures agree", "fail", "1.333"),
        # 8e9 weights of 2 bytes, once for each step of 8 tokens: 5,000 tokens/s are 10 of two H200s' 9.6 TB/s.
        ([row(output_tokens_per_s=5000)], "possible speed", "fail", "104% of what bandwidth allows"),
        ([row(output_tokens_per_s=4500)], "possible speed", "pass", "94% of what bandwidth allows"),
        ([row(output_tokens_per_s=130_000, in_flight=512)], "possible speed", "fail", "105% of what arithmetic"),
        ([row(active_parameters=None)], "possible speed", "unknown", "not told"),
        ([row(window_s=5)], "measured window", "fail", "5 s, read every 0.1 s: ends of 2.0%"),
        ([row()], "measured window", "pass", "ends of 0.1%"),
        ([row(window_s=None, energy_j=80_000)], "measured window", "pass", "100 s"),
        ([row(sensor_s=None)], "measured window", "unknown", "not told"),
        ([row(energy_per_output_token_j=None)], "joules per token", "pass", "0.8 J"),
        ([row(energy_per_output_token_j=None, power_w=None)], "joules per token", "unknown", "neither"),
        ([row(engine="vllm")], "settings told", "unknown", "not told: engine_version, prompts"),
    ],
)
def test_each_rule_finds_its_oddity_by_the_figures(rows: list[Imported], name: str, status: str, figure: str) -> None:
    """On both sides of each limit; what evidence is missing for is unknown, never a pass."""
    outcome = found(rows, name)
    assert outcome is not None
    assert outcome[0] == status, outcome
    assert figure in outcome[1]


def test_a_row_of_an_origin_that_tells_all_settings_can_pass(tmp_path: Path) -> None:
    """InferenceX tells which recipe ran; no origin tells the revision of weights."""
    rows = read_rows(write(tmp_path / "agg.json", [INFERENCEX | {"recipe_fingerprint": "c0ffee"}, INFERENCEX]))
    assert found(rows[:1], "settings told") == ("pass", "all told")
    assert found(rows[1:], "settings told") == ("unknown", "not told: prompts")


def test_a_row_alone_has_no_other_load_to_be_compared_with() -> None:
    """The check does not apply; one of no number in flight neither."""
    assert found([row()], "speed at more in flight") is None
    assert found([row(in_flight=None), row()], "speed at more in flight") is None


def test_imported_rows_answer_the_verdicts_questions_and_are_never_publishable() -> None:
    """What speaks against a row outweighs what is missing; a row with everything would still not be ours."""
    told = dict.fromkeys(("engine", "engine_version", "prompts"), "1")
    odd, whole = audit_rows([row(power_w=1480), row(energy_per_output_token_j=0.81, **told)])
    assert odd.answers == {"wrong": "against", "known": "unknown", "repeat": "unknown"}
    assert whole.answers == {"wrong": "nothing against", "known": "unknown", "repeat": "nothing against"}
    assert [audited.publishable for audited in (odd, whole)] == [False, False]


@pytest.mark.parametrize("name", ["mlenergy", "inferencex"])
def test_the_published_tables_are_what_their_page_counts(name: str) -> None:
    """Of each check, the rows that it speaks against and those that lack its evidence; each row links to a commit."""
    lines = list(csv.DictReader((MEASUREMENTS / f"data/others-{name}.csv").read_text("utf-8").splitlines()))
    part = (
        (MEASUREMENTS / "others.md").read_text("utf-8").partition(f"(data/others-{name}.csv)")[2].partition("\n## ")[0]
    )
    counted = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \|$", part, re.MULTILINE)
    assert f"| of {len(lines)} rows |" in part
    assert counted == [
        (
            check,
            str(sum(f"{check}: " in line["what speaks against it"] for line in lines)),
            str(sum(check in line["evidence is missing of"].split(", ") for line in lines)),
        )
        for check, _, _ in counted
    ]
    assert len(counted) == 8
    assert len({line["row"] for line in lines}) == len(lines)
    assert all(re.match(r"https://github\.com/[^ ]+/blob/[0-9a-f]{40}/", line["row"]) for line in lines)


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("x.json", {"speed": 1}, ("x.json", "no known form", "ML.ENERGY", "codecarbon")),
        ("x.json", "{", ("x.json", "JSON")),
        ("x.yaml", "a: [", ("x.yaml:1", "YAML")),
        ("x.csv", "", ("x.csv", "no known form")),
        ("x.json", VLLM | {"duration": "long"}, ("x.json", "window_s", "'long'", "no figure")),
        ("x.json", VLLM | {"completed": "many"}, ("x.json", "requests", "'many'", "no figure")),
        ("x.json", VLLM | {"duration": 10**400}, ("x.json", "window_s", "1000", "no figure")),
        ("x.json", VLLM | {"duration": [1]}, ("x.json", "window_s", "[1]", "no figure")),
        ("x.json", VLLM | {"output_throughput": -1.0}, ("x.json", "output_tokens_per_s", "-1.0", "no figure")),
        ("x.jsonl", f"{json.dumps(VLLM)}\n\n{{'\n", ("x.jsonl", "line 3", "JSON")),
        ("x.json", [INFERENCEX, {"model": "a/b"}], ("x.json#/1", "no framework", "InferenceX", "leave the row out")),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(
    tmp_path: Path, name: str, content: Any, values: tuple[str, ...]
) -> None:
    """With the file, what was seen, and what would do."""
    with raises(ConfigError, *values):
        read_rows(write(tmp_path / name, content))


def test_mean_lengths_keep_their_digits_and_count_as_equal_to_two(tmp_path: Path) -> None:
    """5,987 tokens are not 6,000, and a repeat whose mean is 6,012 is one; another that is 6,900 is none."""
    totals = (1_197_468, 1_202_400, 1_380_000)
    rows = read_rows(write(tmp_path / "bench.json", [VLLM | {"total_input_tokens": total} for total in totals]))
    assert [each.mean_lengths["mean prompt"] for each in rows] == [5987.34, 6012.0, 6900.0]
    assert rows[0].other_settings == {"request_rate": "inf"}
    told = [
        each.model_copy(update={"gpu": "H200", "gpu_count": 1.0, "energy_j": 1e5 + at}) for at, each in enumerate(rows)
    ]
    assert [status[1][:15] for at in range(3) if (status := found(told[at:] + told[:at], "repeats"))] == [
        "2 rows of equal",
        "2 rows of equal",
        "one row of thes",
    ]


def test_the_verdicts_column_tells_what_failed_warned_and_was_not_decided(called: Called, tmp_path: Path) -> None:
    """A check's name alone would read as passed; the lines below count the same."""
    good: dict[str, Any] = dict(*ML_ENERGY["configurations"])
    hot = good | {"num_gpus": 1, "max_num_seqs": 4}
    slow = good | {"max_num_seqs": 16, "output_throughput_tokens_per_sec": 12_345.6, "energy_per_token_joules": 0.065}
    slow |= {"energy_per_request_joules": 32.5}
    slower = good | {"max_num_seqs": 32, "output_throughput_tokens_per_sec": 900.0, "avg_power_watts": 720.0}
    rows = [hot, good, slow, slower]
    lines = called("audit", write(tmp_path / "chat.json", {"task": "chat", "configurations": rows})).stdout.splitlines()
    undecided = "not decided: repeats, measured window, settings told"
    assert f"failed: power limit, 800 W for each GPU (limit: 700 W + 5%); {undecided}" in lines[1]
    assert re.search(rf"  {undecided}$", lines[2])
    assert "12,346" in lines[3]
    assert "warned: speed at more in flight, 900 tokens/s, -92.7% against 16 in flight (limit: at most 4.1%" in lines[4]
    assert "failed or warned: power limit (1), speed at more in flight (1)" in lines[5]
    assert lines[7].endswith("; not decided: settings told (4)")


def test_the_command_prints_a_table_or_json(called: Called, tmp_path: Path) -> None:
    """Each says that the rows are others'."""
    file = write(tmp_path / "chat.json", ML_ENERGY)
    table = called("audit", file, file, tmp_path / "../" / tmp_path.name / "chat.json")
    assert (table.returncode, "1 row of others, none publishable" in table.stdout) == (0, True)
    [audited] = json.loads(called("audit", file, "--json").stdout)
    assert (audited["publishable"], audited["row"]["origin"]) == (False, "ML.ENERGY")
    assert audited["answers"] == {"wrong": "nothing against", "known": "unknown", "repeat": "unknown"}
    own = stored(tmp_path / "results")
    beside = called("audit", file, "--beside", own)
    assert beside.stdout.splitlines()[1].split()[0] == "own", beside
    both = json.loads(called("audit", file, "--beside", own, "--json").stdout)
    assert (both["imported"], len(both["own"])) == ([audited], 1)
    assert called("form", "ml-energy", SMOLLM2, "--again", "-o", tmp_path / "own.json").returncode == 0
    [written] = json.loads(called("audit", tmp_path / "own.json", "--json").stdout)
    assert (written["row"]["origin"], written["row"]["in_flight"]) == ("ML.ENERGY", 160)
    missing = called("audit", tmp_path / "none.json")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "none.json: No such file" in missing.stderr

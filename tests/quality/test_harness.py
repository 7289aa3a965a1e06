"""Tasks of lm-evaluation-harness, in an environment that has it: its prompts and metrics, our answers, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pyarrow.parquet as pq
import pytest
from contract.runner_process import LLAMACPP_PYTHON, PYTORCH_PYTHON, VLLM_PYTHON

REPO = Path(__file__).parents[2]
PACKAGE = "lm-eval==0.4.13"
ENGINES: dict[str, tuple[Path, dict[str, Any]]] = {
    "pytorch": (PYTORCH_PYTHON, {"dtype": "float32", "cpu_threads": 1}),
    "vllm": (
        VLLM_PYTHON,
        {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28},
    ),
    "llamacpp": (LLAMACPP_PYTHON, {"n_threads": 1, "n_threads_batch": 1}),
}
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
fewshot_split: test
output_type: {kind}
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{{target}}}}}"
{more}
generation_kwargs: {{until: ["\\n", "Q:"], max_gen_toks: 16, do_sample: {drawn}, temperature: 0.5}}
metric_list: [{{metric: {metric}, aggregation: mean, higher_is_better: {rises}}}]
num_fewshot: 0
metadata: {{version: 3.0}}
"""
NUMBER = """filter_list:
  - name: number
    filter: [{function: regex, regex_pattern: '(\\d+)'}, {function: take_first}]"""
# Asks one task of an engine that adds rightly but at every fourth place, and prints what came of it as JSON.
ASKING = """
import json, re, sys
from pathlib import Path
from wattdock.config import load_study
from wattdock.errors import ConfigError
from wattdock.quality import Answer, Likelihood, tasks_of

class Adding:
    asked = []
    def generate(self, prompts, stop=()):
        self.asked.append([[prompt.content for prompt in prompts], list(stop), prompts[0].max_output_tokens])
        texts = [prompt.content if isinstance(prompt.content, str) else prompt.content[-1][1] for prompt in prompts]
        sums = [sum(map(int, re.findall(r"(\\d+) \\+ (\\d+)", text)[-1])) for text in texts]
        return [Answer(f"<think>9</think> It is {each + (at % 4 == 0)}.", (0, at)) for at, each in enumerate(sums)]
    def likelihoods(self, pairs):
        return [Likelihood(-float(at % 2), False, (0, at)) for at, _ in enumerate(pairs)]

config = load_study(json.loads(sys.argv[1]), {}).experiments[0]
try:
    found, loads = [], []
    for _ in range(2):
        task, engine = tasks_of(config)[0], Adding()
        engine.asked = []
        if not loads:
            from lm_eval.tasks import TaskManager
            TaskManager.load = loads.append
        scores = [[score.item, score.category, score.score, score.requests] for score in task.evaluate(engine)]
        found.append([task.version, task.few_shot, task.items, scores, engine.asked])
    first, second = found
    assert (first, loads) == (second, []), "restarts differ, or load their tasks again"
    print(json.dumps(dict(zip(("version", "few_shot", "items", "scores", "asked"), first))))
except ConfigError as error:
    print(json.dumps({"error": str(error)}))
"""
# Asks the same of the harness's own model of transformers, whose packages win over those beside the harness.
OF_TRANSFORMERS = """
import json, sys
sys.path.append(sys.argv[1])
import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

tasks = TaskManager(include_path=sys.argv[3], include_defaults=False).load(sys.argv[4].split(","))
named = {"gguf_file": sys.argv[5], "tokenizer": sys.argv[2]} if len(sys.argv) > 5 else {}
model = HFLM(pretrained=sys.argv[2], dtype="float32", device="cpu", batch_size=1, **named)
found = lm_eval.evaluate(lm=model, task_dict=tasks, bootstrap_iters=0)["samples"]
said = [each["resps"][0][0] for each in found["sums"]]
scores = {name: [each[each["metrics"][0]] for each in of_task] for name, of_task in found.items()}
print(json.dumps({"said": said, "scores": scores}))
"""


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness and what it needs, beside the packages of this environment."""
    folder = tmp_path_factory.mktemp("harness") / "packages"
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), PACKAGE]
    subprocess.run(command, check=True, cwd=folder.parent)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder of tasks: sound, broken, without data, of given answers, and with answers that are drawn."""
    numbers = [
        {"question": f"What is {at} + {at + 1}?", "answer": str(2 * at + 1), "place": min(at, 1)} for at in range(12)
    ]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(each | {"subject": "even"}) + "\n" for each in numbers))
    sound: dict[str, Any] = {
        "kind": "generate_until",
        "target": "answer",
        "data": data.name,
        "drawn": "false",
        "metric": "exact_match",
        "rises": "true",
    }
    sound["more"] = NUMBER
    others: dict[str, dict[str, Any]] = {
        "sums": {},
        "broken": {"target": " nonsense(answer "},
        "nodata": {"data": "none.jsonl"},
        "outside": {"data": data},
        "above": {"data": f"../{tmp_path.name}/sums.jsonl"},
        "named": {"data": f"{tmp_path.name}/sums.jsonl"},
        "choice": {"kind": "multiple_choice", "metric": "acc", "target": "place", "more": 'doc_to_choice: ["1", "3"]'},
        "drawn": {"drawn": "true"},
        "falls": {"rises": "false"},
    }
    for name, changed in others.items():
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, **sound | changed))
    (tmp_path / "mixed.yaml").write_text("group: mixed\ntask: [sums, choice]\n")
    return tmp_path


def asked(packages: Path, tasks: Path, name: str, cwd: Path | None = None, **quality: Any) -> dict[str, Any]:
    """Ask a task; return what came of it."""
    path = os.pathsep.join(map(str, [packages, REPO / "coordinator", REPO / "proto"]))
    settings = {"quality": {"tasks": [name], "folder": str(tasks), **quality}}
    command = [sys.executable, "-c", ASKING, json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, cwd=cwd or tasks, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_task_of_the_page_is_asked(packages: Path, tmp_path: Path) -> None:
    """As written there, with the data of its command, it scores each right answer."""
    page = (REPO / "docs/how-to/worth.md").read_text(encoding="utf-8")
    [task] = re.findall(r"```yaml\n# tasks/(sums.yaml)\n(.*?)```", page, flags=re.DOTALL)
    [command] = re.findall(r"^printf .*$", page, flags=re.MULTILINE)
    (folder := tmp_path / "tasks").mkdir()
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    (folder / task[0]).write_text(task[1])
    found = asked(packages, folder, "sums", cwd=tmp_path)
    # The stand-in is wrong at every fourth place, and says a thought first.
    assert [score[2] for score in found["scores"]] == [0.0, 1.0, 1.0]


def test_tasks_prompts_filters_and_metrics_are_the_harness_s(packages: Path, tasks: Path) -> None:
    """Every fourth answer is wrong; examples are turns of a chat; stops and limits are the task's; items are drawn."""
    found = asked(packages, tasks, "sums", few_shot=2, limit=8)
    assert (found["version"][:5], found["few_shot"], found["items"]) == ("3.0, ", 2, 8)
    assert [score for _, _, score, _ in found["scores"]] == [0, 1, 1, 1] * 2
    items = [item for item, *_ in found["scores"]]
    assert items == sorted(set(items))
    assert len(items) == 8
    assert {category for _, category, _, _ in found["scores"]} == {"even"}
    [[prompts, stop, limit]] = found["asked"]
    assert (stop, limit) == (["\n", "Q:"], 16)
    assert [role for role, _ in prompts[0]] == ["user", "assistant", "user", "assistant", "user"]
    assert prompts[0][-1][1] == f"Q: What is {items[0]} + {items[0] + 1}?\nA:"


@pytest.mark.parametrize(
    ("name", "quality", "message"),
    [
        ("broken", {}, "quality.tasks: broken: cannot be loaded or scored"),
        ("nodata", {}, "none.jsonl"),
        ("outside", {}, "sums.jsonl, and data lie in quality.folder"),
        ("above", {}, "sums.jsonl, and data lie in quality.folder"),
        ("choice", {}, "chat templates hide them; quality.chat: false"),
        ("drawn", {}, "it draws its answers at random"),
        ("falls", {}, "its metric exact_match gives no item a value from 0, wrong, to 1, right"),
        ("nosuch", {}, "lm-evaluation-harness has no such task"),
        ("broke", {}, "write broken"),
        ("gsm8", {}, "write gsm8k"),
        ("gsm8k", {}, "its data must be here already"),
    ],
)
def test_what_the_harness_cannot_ask_is_one_line(
    packages: Path, tasks: Path, name: str, quality: dict[str, Any], message: str
) -> None:
    """A broken task, one without data, one that needs what cannot be told."""
    error = asked(packages, tasks, name, **quality)["error"]
    assert message in error
    assert "\n" not in error


def test_data_of_a_task_are_those_of_its_folder_wherever_the_command_runs(packages: Path, tasks: Path) -> None:
    """A bundle's tasks must not ask what lies in somebody's folder; another answer, or text, is another version."""
    elsewhere = tasks / "elsewhere"
    (elsewhere / tasks.name).mkdir(parents=True)
    other = (tasks / "sums.jsonl").read_text().replace("What is", "Tell me")
    for place in (elsewhere, elsewhere / tasks.name):
        (place / "sums.jsonl").write_text(other)
    here, there = (asked(packages, tasks, "sums", cwd=place) for place in (tasks, elsewhere))
    assert here == there == asked(packages, tasks, "named", cwd=elsewhere) | {"version": here["version"]}
    versions = {here["version"]}
    for name, before, after in (("sums.jsonl", '"answer": "1"', '"answer": "2"'), ("sums.yaml", "Q: ", "Question: ")):
        text = (tasks / name).read_text()
        (tasks / name).write_text(text.replace(before, after, 1))
        versions.add(asked(packages, tasks, "sums")["version"])
        (tasks / name).write_text(text)
    assert len(versions) == 3
    assert asked(packages, tasks, "sums")["version"] == here["version"]


def test_given_answers_are_compared_by_their_likelihoods(packages: Path, tasks: Path) -> None:
    """The engine finds the first of two choices likelier, which is right of the first item alone."""
    found = asked(packages, tasks, "choice", chat=False)
    assert [score for _, _, score, _ in found["scores"]] == [1.0] + [0.0] * 11
    assert found["scores"][1][3] == [[0, 2], [0, 3]]


def test_every_item_of_a_group_that_asks_in_two_ways_keeps_its_requests(packages: Path, tasks: Path) -> None:
    """One request of an item that generates, two of an item with two given answers: none of their joules is lost."""
    scores = asked(packages, tasks, "mixed", chat=False)["scores"]
    assert sorted(len(requests) for *_, requests in scores) == [1] * 12 + [2] * 12


def dequantised(file: Path, folder: Path) -> None:
    """Write a GGUF file with its tensors at 32 bit."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(folder / "wide.gguf", reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], of_items)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float32).reshape(tensor.shape[::-1]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("engine", ["pytorch", "vllm", "llamacpp at 32 bit", "llamacpp at Q4_1"])
def test_scores_are_those_of_the_harness_s_own_model_of_transformers(
    packages: Path, tasks: Path, models: Path, tmp_path: Path, engine: str
) -> None:
    """SmolLM2's real weights: the same answers and choices, item by item; of llama.cpp those of its GGUF.

    At Q4_1 llama.cpp rounds activations to 8 bits before each product, which transformers does not: a text may differ,
    and none does with the same weights at 32 bit. Source: `quantize_row_q8_1` in ggml-cpu/quants.c of llama.cpp.
    """
    backend = engine.partition(" ")[0]
    python, settings = ENGINES[backend]
    if not python.exists():
        pytest.skip(f"no environment at {python}")
    data = (tasks / "sums.jsonl").read_text().splitlines(keepends=True)
    (tasks / "sums.jsonl").write_text("".join(data[:8]))
    model, asked = models / "smollm2-135m-instruct", ["sums"] if backend == "llamacpp" else ["sums", "choice"]
    [quantised] = model.glob("*.gguf")
    words: list[str | Path] = [PYTORCH_PYTHON, "-c", OF_TRANSFORMERS, packages, model, tasks, ",".join(asked)]
    if backend == "llamacpp":
        words.append(quantised.name)
        shutil.copytree(model, tmp_path / "model", ignore=lambda *_: ["model.safetensors"])
        model = tmp_path / "model"
    if engine.endswith("32 bit"):
        (model / quantised.name).unlink()
        dequantised(quantised, model)
    # Transformers reads GGUF by a package that lies beside pytest.
    beside = {"PYTHONPATH": str(make_link(tmp_path / "beside"))}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True}
    theirs = json.loads(subprocess.run(words, env=environment | beside, check=True, **ran).stdout.splitlines()[-1])

    study = {
        "backend": backend,
        "model": {"path": str(model)},
        backend: settings,
        "warmup": {"passes": 0},
        "idle": {"duration_s": 0},
        "repeats": {"passes": 1, "restarts": 1},
        "workload": {"batch_size": 4, "max_output_tokens": 2, "prompts": {"source": "synthetic", "input_tokens": 8}},
        "quality": {"tasks": asked, "folder": str(tasks), "chat": False},
    }
    (tmp_path / "x.yaml").write_text(json.dumps(study))
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [REPO / "coordinator", REPO / "proto", packages]))
    words = [sys.executable, "-m", "wattdock", "run", "x.yaml", "--runner-python", python]
    subprocess.run(words, env=environment, check=True, **ran)
    [file] = tmp_path.glob("results/*/result.json")
    found = json.loads(file.read_text())["quality"]
    requests = pq.read_table(file.parent / "restarts/0/requests.parquet").to_pylist()
    answered = [each["text"] for each in requests if each["pass"] == -1]

    assert found["failures"] == []
    assert {task["name"]: task["scores"] for task in found["tasks"]} == theirs["scores"]
    differ = sum(ours != hf for ours, hf in zip(answered, theirs["said"], strict=True))
    assert differ <= (2 if engine.endswith("Q4_1") else 0)


@pytest.mark.skipif(not LLAMACPP_PYTHON.exists(), reason=f"no llama.cpp environment at {LLAMACPP_PYTHON}")
def test_a_bundle_with_tasks_of_ones_own_is_reproduced_up_to_its_score(
    packages: Path, tasks: Path, tmp_path: Path
) -> None:
    """A real engine is asked the bundle's tasks, not those of the same name where `reproduce` is called."""
    first, there = tmp_path / "first", tmp_path / "there"
    for project, what in ((first, "What is"), (there, "Tell me")):
        (project / "tasks").mkdir(parents=True)
        data = (tasks / "sums.jsonl").read_text().replace("What is", what).splitlines(keepends=True)
        (project / "tasks/sums.jsonl").write_text("".join(data[:4]))
        shutil.copy(tasks / "sums.yaml", project / "tasks")
    study = {
        "backend": "llamacpp",
        "llamacpp": {"n_threads": 1, "n_threads_batch": 1},
        "launcher": "process",
        "warmup": {"passes": 0},
        "idle": {"duration_s": 0},
        "repeats": {"passes": 1, "restarts": 1},
        "workload": {"batch_size": 2, "max_output_tokens": 2, "prompts": {"source": "synthetic", "input_tokens": 8}},
        "quality": {"tasks": ["sums"], "folder": "tasks", "chat": False, "max_output_tokens": 8},
    }
    (first / "x.yaml").write_text(json.dumps(study))
    path = os.pathsep.join(map(str, [REPO / "coordinator", REPO / "proto", packages]))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}

    def wattdock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "wattdock", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    engine = ("--runner-python", str(LLAMACPP_PYTHON))
    for done in (
        wattdock(first, "run", "x.yaml", *engine),
        wattdock(there, "bundle", "create", "../first/results", "-o", "b.tar"),
    ):
        assert done.returncode == 0, done.stderr
    shutil.rmtree(first)
    done = wattdock(there, "reproduce", "b.tar", *engine, "--json", "--trust-remote-code")
    # One restart a side tells nothing of its speed.
    assert done.returncode == 10, done.stderr
    [pair] = json.loads(done.stdout)["pairs"]
    assert (pair["quality"]["items"], pair["quality"]["difference"], pair["quality"]["same_answers"]) == (4, 0, 1)
    [file] = there.glob("results/*/result.json")
    [asked_here] = json.loads(file.read_text())["quality"]["tasks"]
    assert (asked_here["name"], asked_here["items"], asked_here["version"][:5]) == ("sums", 4, "3.0, ")


def make_link(folder: Path) -> Path:
    """Return a folder that holds the package gguf of this environment and nothing else of it."""
    folder.mkdir()
    package = Path(str(gguf.__file__)).parent
    for path in (package, *package.parent.glob("gguf-*.dist-info")):
        (folder / path.name).symlink_to(path)
    return folder

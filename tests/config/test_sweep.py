"""From a study file to its experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refused import raises
from seams.fleet import options_of
from study_schema import study_schema

from wattdock.audit import left_to_do
from wattdock.config import load_study
from wattdock.errors import Cause, ConfigError
from wattdock.fleet import jobs_of, process_choices
from wattdock.study.tasks import tasks_of

if TYPE_CHECKING:
    from wattdock.config import Study

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPO / "examples").glob("*.yaml"))


def study(tmp_path: Path, text: str, **flags: Any) -> Study:
    (tmp_path / "x.yaml").write_text(text)
    return load_study(tmp_path / "x.yaml", flags)


def swept(found: Study) -> list[tuple[object, ...]]:
    return [(each.backend, each.workload.batch_size, each.workload.max_output_tokens) for each in found.experiments]


def test_every_combination_is_an_experiment_and_zipped_settings_go_together(tmp_path: Path) -> None:
    """Two batch sizes × two pairs."""
    text = (
        "defaults: {model: 'shape:tiny'}\n"
        "sweep:\n"
        "  workload.batch_size: [1, 8]\n"
        "  zip: {workload.prompts.input_tokens: [512, 32], workload.max_output_tokens: [16, 64]}\n"
    )
    found = study(tmp_path, text)
    assert swept(found) == [("pytorch", 1, 16), ("pytorch", 1, 64), ("pytorch", 8, 16), ("pytorch", 8, 64)]
    assert [each.workload.prompts.input_tokens for each in found.experiments] == [512, 32, 512, 32]
    assert found.experiments[0].name == "batch_size=1 input_tokens=512 max_output_tokens=16"


def test_what_is_swept_in_a_backends_section_multiplies_that_backend_only(tmp_path: Path) -> None:
    """And each backend gets its own section of the defaults, not the other's."""
    text = (
        "defaults: {pytorch: {dtype: float32}, vllm: {max_model_len: 512}}\n"
        "sweep: {backend: [pytorch, vllm], vllm.max_num_seqs: [4, 8, 16]}\n"
    )
    found = study(tmp_path, text)
    assert [each.backend for each in found.experiments] == ["pytorch", "vllm", "vllm", "vllm"]
    assert found.experiments[0].section.engine_args() == {}
    assert found.experiments[1].section.engine_args() == {"max_model_len": 512, "max_num_seqs": 4}
    assert found.notes == ()


def test_experiments_of_swept_command_words_are_named_as_they_are_typed(tmp_path: Path) -> None:
    """An option names itself; a list of words is a command, a list of numbers is not, and nothing is ''."""
    command = "measure: {command: [python, train.py, '{mode}']}"
    found = study(tmp_path, f"defaults: {{{command}}}\nsweep: {{measure.args.mode: [--seed=1, -x, '', fast, -1]}}\n")
    assert [each.name for each in found.experiments] == ["--seed=1", "-x", "mode=''", "mode=fast", "mode=-1"]
    commands = "[[python, 'my file.py', --fsdp], python x.py]"
    found = study(tmp_path, f"sweep: {{measure.command: {commands}, gpus: [[1], {{count: 1}}]}}\n")
    assert [each.name for each in found.experiments] == [
        *("command=python 'my file.py' --fsdp gpus=[1]", "command=python 'my file.py' --fsdp gpus=1"),
        *("command=python x.py gpus=[1]", "command=python x.py gpus=1"),
    ]


def test_all_mistakes_of_a_study_are_told_at_once_each_in_one_line(tmp_path: Path) -> None:
    """Of the sweep's points and of `experiments:`; what several experiments share is told once, and twenty at most."""
    text = (
        "defaults: {repeats: {restarts: 0}}\n"
        "sweep:\n"
        "  workload.batch_size: [1, 0, -3]\n"
        "experiments:\n"
        "- {workload: {batch: 1}}\n"
    )
    with raises(ConfigError) as refused:
        study(tmp_path, text)
    lines = {"1: repeats.restarts", "3: workload.batch_size", "5: workload.batch"}
    told = [line.partition("x.yaml:")[2] for line in str(refused.value).splitlines()]
    assert (len(told), {line[: line.index(": ", 3)] for line in told}) == (4, lines)
    with raises(ConfigError) as refused:
        study(tmp_path, f"sweep: {{workload.batch_size: {list(range(-24, 0))}}}\n")
    assert len(str(refused.value).splitlines()) == 20
    assert str(refused.value).endswith("(and 4 more)")
    # A single mistake keeps its next step apart, for programs.
    with raises(ConfigError, cause=Cause.UNKNOWN_SETTING) as refused:
        study(tmp_path, "defaults: {workload: {batch: 1}}\nsweep: {workload.max_output_tokens: [1, 2]}\n")
    assert refused.value.remedy == "did you mean 'batch_size'?"


def test_an_experimental_backend_is_named_once(tmp_path: Path) -> None:
    """Before anything starts."""
    found = study(tmp_path, "defaults: {backend: tensorrt}\nsweep: {workload.batch_size: [1, 2]}\n")
    [note] = found.notes
    assert note.startswith("tensorrt is experimental")


def test_equal_experiments_are_measured_once_and_that_is_said(tmp_path: Path) -> None:
    """A name does not make it another experiment."""
    found = study(
        tmp_path,
        "sweep: {workload.batch_size: [1, 2, 2]}\nexperiments: [{name: again, workload: {batch_size: 1}}]\n",
    )
    assert [each.workload.batch_size for each in found.experiments] == [1, 2]
    assert len(found.notes) == 2
    assert all(name in found.notes[1] for name in ("'again'", "'batch_size=1'"))
    # A flag wins over what is swept.
    found = study(tmp_path, "sweep: {workload.batch_size: [1, 2]}\n", **{"workload.batch_size": 3})
    assert [each.workload.batch_size for each in found.experiments] == [3]


AXES = {
    "workload.batch_size": st.lists(st.integers(1, 9), min_size=1, max_size=4),
    "workload.max_output_tokens": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "workload.arrival": st.lists(st.sampled_from(["batch", "closed", "single"]), min_size=1, max_size=3),
    "backend": st.lists(st.sampled_from(["pytorch", "vllm"]), min_size=1, max_size=2),
    "vllm.max_num_seqs": st.lists(st.integers(1, 9), min_size=1, max_size=2),
}


@given(st.fixed_dictionaries({}, optional=AXES).filter(bool), st.randoms(use_true_random=False))
def test_expansion_has_no_duplicates_and_does_not_depend_on_the_order_of_writing(
    tmp_path_factory: pytest.TempPathFactory, sweep: dict[str, list[Any]], random: Any
) -> None:
    """Settings and values in any order give the same experiments, each once, and the same study."""
    sweep = {"backend": ["vllm"], **sweep}
    names = random.sample(list(sweep), len(sweep))
    mixed = {name: random.sample(sweep[name], len(sweep[name])) for name in names}
    file = tmp_path_factory.mktemp("s") / "x.yaml"
    found: list[Study | None] = []
    for axes in (sweep, mixed):
        file.write_text(yaml.safe_dump({"sweep": axes}, sort_keys=False))
        try:
            found.append(load_study(file, {}))
        except ConfigError:
            found.append(None)
    first, second = found
    assert (first is None) == (second is None)
    if first and second:
        ids = [each.experiment_id for each in first.experiments]
        assert len(set(ids)) == len(ids)
        assert set(ids) == {each.experiment_id for each in second.experiments}
        assert first.digest == second.digest


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_can_be_run_as_it_stands_and_edited(file: Path) -> None:
    """Each experiment has its own name and room for its requests; the published schema finds no mistake."""
    found = load_study(file, {})
    assert len({experiment.name for experiment in found.experiments}) == len(found.experiments) > 0
    for experiment in found.experiments:
        most = experiment.section.engine_args().get("max_num_seqs")
        assert most is None or experiment.workload.batch_size <= most
    jsonschema.Draft202012Validator(study_schema()).validate(yaml.safe_load(file.read_text()))


def test_the_example_of_a_cluster_lacks_nothing_of_a_publishable_figure(tmp_path: Path) -> None:
    """From a clone without changes: settings, weights, packages for a GPU, and a node alone."""
    found = load_study(REPO / "examples/cluster-publishable.yaml", {}, publishable=True)
    assert left_to_do(found.experiments, "c0ffee", on_nodes=True) == ([], [])
    [launch] = process_choices(found).values()
    assert launch.packages is not None
    [job] = jobs_of(found, tasks_of(found, tmp_path), path=tmp_path)
    assert {"--exclusive", "--gres=gpu:1", "--time=1:00:00"} <= {*options_of(job)}


@pytest.mark.parametrize("nodes", [2, {"agents": ["n2:1"], "pairing": "p"}, {"count": 3, "clock_limit_j": 9.0}])
def test_the_published_schema_knows_the_short_forms(nodes: object) -> None:
    """What the loader takes is no mistake in an editor."""
    study = {"backend": "vllm", "model": "shape:tiny-llama", "nodes": nodes}
    jsonschema.Draft202012Validator(study_schema()).validate(study)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": "2"},
        {"workload": {"batch_sise": 1}},
        {"sweep": {"workload.batch_size": 3}},
        {"sweep": {"workload.seed": [1]}, "nmae": "x"},
        {"experiments": [{"pytorch": {"dtype": "float17"}}]},
    ],
)
def test_the_published_schema_finds_mistakes(wrong: dict[str, Any]) -> None:
    """Otherwise it would be of no use to an editor."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(study_schema()).validate(wrong)

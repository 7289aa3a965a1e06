"""A study is measured with one model, one file of prompts and one set of engine settings, or not continued."""

from __future__ import annotations

import shutil
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from make import models as tiny
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.outcomes import begins, known, passes, send, statuses
from refused import raises
from seams.study import (
    PassFinished,
)

from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError, ExitCode, PreflightError

if TYPE_CHECKING:
    from pathlib import Path

    from seams.study import Event


@pytest.mark.parametrize("interrupted_in", ["pass 2/2", "pass 1/3", None])
def test_a_study_whose_prompts_file_changed_is_not_resumed_until_it_is_put_back(
    machine: VirtualMachine, tmp_path: Path, interrupted_in: str | None
) -> None:
    """A path in the settings is the same whatever stands in the file; an experiment that is done counts, too."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [1, 2, 3]}\n')
    first = experiment("a", workload={"prompts": {"source": str(prompts)}, "batch_size": 1})
    planned = study(first, experiment("b", repeats={"passes": 3}), order="written")
    with pytest.raises(KeyboardInterrupt) if interrupted_in else nullcontext():
        machine.run(planned, on=send(signal.SIGTERM, begins(interrupted_in or "")))
    prompts.write_text('{"token_ids": [4, 5, 6]}\n')
    with raises(ConfigError, "prompts.jsonl", cause=Cause.PROMPTS_CHANGED):
        machine.run(planned, resume=True)
    prompts.write_text('{"token_ids": [1, 2, 3]}\n')
    assert statuses(machine.run(planned, resume=True).results) == [("a", "ok"), ("b", "ok")]


def edit(folder: Path, change: dict[str, str | None]) -> None:
    """Write files into a model's folder, or remove those without content."""
    for name, text in change.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chat_template.jinja": "{{ 2 }}"}, "chat_template.jinja has changed"),
        ({"chat_template.jinja": None}, "chat_template.jinja is gone"),
        ({"generation_config.json": '{"eos_token_id": 2}'}, "generation_config.json is new"),
        ({"config.json": '{"model_type": "llama", "vocab_size": 31}'}, "config.json has changed"),
        ({"tokenizer.json": "{ }", "merges.txt": "a b"}, "merges.txt is new, tokenizer.json has changed"),
        ({"additional_chat_templates/tools.jinja": ""}, "additional_chat_templates/tools.jinja is new"),
        ({"tokenizer.model": "x"}, "tokenizer.model is new"),
        ({"code.py": "x = 1"}, "code.py is new"),
    ],
)
def test_a_study_whose_model_folder_changed_is_not_resumed_until_it_is_put_back(
    machine: VirtualMachine, tmp_path: Path, change: dict[str, str | None], told: str
) -> None:
    """The settings hold the folder's path only; the restart that was interrupted has passes already."""
    folder = tiny.write(tmp_path / "model", tiny.files() | {"chat_template.jinja": b"{{ 1 }}"})
    model = ModelSpec(path=folder, trust_remote_code=True)
    planned = study(experiment("a", model=model, repeats={"restarts": 2, "passes": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    shutil.copytree(folder, tmp_path / "kept")
    edit(folder, change)
    launches = machine.launches
    with raises(ConfigError, folder, told, cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)
    assert machine.launches == launches
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    resumed = machine.run(planned, resume=True)
    assert statuses(resumed.results) == [("a", "ok")]
    assert sum(passes(resumed.results).values()) == 4


def test_code_in_a_model_folder_is_nothing_to_a_study_that_does_not_run_it(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Nor is a file that no engine reads."""
    folder = tiny.write(tmp_path / "model")
    planned = study(experiment("a", model=str(folder), repeats={"restarts": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    edit(folder, {"code.py": "x = 1", "README.md": "other"})
    assert statuses(machine.run(planned, resume=True).results) == [("a", "ok")]


def test_a_study_is_not_resumed_where_the_model_of_what_is_done_has_changed(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Results of one study are of one model, as they are of one machine."""
    folder = tiny.write(tmp_path / "model")
    planned = study(experiment("a", model=str(folder)), experiment("b", repeats={"passes": 3}), order="written")
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/3")))
    edit(folder, {"tokenizer.json": "{ }"})
    with raises(ConfigError, "tokenizer.json", cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)


def test_a_file_of_a_shape_that_was_edited_counts_as_well(machine: VirtualMachine) -> None:
    """It lies in a folder that can be edited, and its revision stays the same, as that of a hub's cached model does."""
    planned = study(experiment("a", repeats={"restarts": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    [folder] = (machine.folder / "home").glob("models/shapes/tiny-*")
    edit(folder, {"config.json": (folder / "config.json").read_text() + " "})
    with raises(ConfigError, "config.json", cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)


def test_a_model_that_changes_between_restarts_ends_its_experiment_and_not_the_others(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Restarts of two models have no common mean; what was measured before is kept."""
    folder = tiny.write(tmp_path / "model")
    planned = study(
        experiment("a", model=str(folder), repeats={"restarts": 2}),
        experiment("b", repeats={"restarts": 2}),
        order="written",
    )

    def change(event: Event) -> None:
        if isinstance(event, PassFinished) and event.stage == "pass 2/2":
            edit(folder, {"tokenizer_config.json": "{}"})

    run = machine.run(planned, on=change)
    assert statuses(run.results) == [("a", "failed"), ("b", "ok")]
    failed = run.results[0].result
    assert failed.error is not None
    assert (failed.error.exit_code, failed.error.kind) == (ExitCode.CONFIG, "ConfigError")
    assert (failed.error.cause, "tokenizer_config.json" in failed.error.message) == (Cause.MODEL_CHANGED, True)
    assert passes(run.results[:1]).keys() == {("a", 0, 0), ("a", 0, 1)}
    assert "tokenizer_config.json" not in known(failed.environment).model.files


def test_a_model_that_changes_while_it_is_loaded_is_not_measured(
    machine: VirtualMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could say which of the two files the engine has read."""
    folder, load = tiny.write(tmp_path / "model"), VirtualRunner.load

    def editing(*arguments: Any, **options: Any) -> Any:
        edit(folder, {"tokenizer.json": "{ }"})
        return load(*arguments, **options)

    monkeypatch.setattr(VirtualRunner, "load", editing)
    [stored] = machine.run(study(experiment("a", model=str(folder)))).results
    assert known(stored.result.error).cause == Cause.MODEL_CHANGED
    assert not passes([stored])


@pytest.mark.parametrize("variables", [{"NCCL_NTHREADS": "3"}, {}])
def test_a_study_is_not_gone_on_with_under_other_engine_settings_of_the_environment(
    machine: VirtualMachine, variables: dict[str, str]
) -> None:
    """They decide how an engine runs as much as its arguments do."""
    machine.variables = {"NCCL_NTHREADS": "2"}
    machine.run(study(experiment("a")))
    machine.variables = variables
    with pytest.raises(PreflightError, match=rf"variables\.NCCL_NTHREADS 2 → {variables.get('NCCL_NTHREADS')}"):
        machine.run(study(experiment("a")), resume=True)

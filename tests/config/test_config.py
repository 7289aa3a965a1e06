"""What a person may write, and what a mistake in it is answered with."""

from __future__ import annotations

import time
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refused import raises

from wattdock.config import ExperimentConfig, ModelSpec, load_study, parse_yaml
from wattdock.errors import Cause, ConfigError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("backend: pytorch\nworkload:\n  batch_size: 0\n", "3: workload.batch_size not 0"),
        ("sweeep: {}\n", "1: 'sweeep' 'sweep'?"),
        ("pytorch: {dtyp: float16}\n", "1: 'dtyp' 'dtype'?"),
        ("backend: vllm\nvllm: {tensor_paralel_size: 2}\n", "2: 'tensor_paralel_size' vllm 'tensor_parallel_size'?"),
        ("order: written\n", "1: order: `order:` study"),
        ("workload: {name: x}\n", "1: workload.name: `name:` experiment"),
        ("workload:\n\n  batch_sise: 2\n", "3: 'batch_sise' 'batch_size'?"),
        ("batch_size: 3\n", "1: 'batch_size' 'workload.batch_size'?"),
        ("workload: {Batch_size: 2}\n", "1: 'Batch_size' 'batch_size'?"),
        ("workload: {rate: 2}\n", "1: 'rate' 'rate_per_s'?"),
        ("gpus: 2\n", "1: gpus: auto, {count: N}, not 2"),
        ("gpus: all\n", "1: gpus: auto, {count: N}, not 'all'"),
        ("gpus:\n", "1: gpus: auto, {count: N}, not None"),
        ("gpus: [0, -1]\n", "1: gpus: -1 index UUID `wattdock gpus`"),
        ("gpus: [1.5]\n", "1: gpus: 1.5 index UUID"),
        ("measure: {command: 'a {x}', args: {x: [1]}}\n", "1: measure.args.x: takes one value, not [1]; `sweep:`"),
        ("workload: {batch_size: [1, 8]}\n", "1: workload.batch_size: [1, 8] `sweep:`"),
        ("workload: {restart: 2}\n", "1: 'restart' 'repeats.restarts'?"),
        ("pytorch:\n  dtype: float17\n", "2: pytorch.dtype 'float17'"),
        ("backend: pytorch\nvllm: {max_num_seqs: 3}\n", "2: 'vllm' `backend:"),
        ("a: [1\nb", "2:"),
        ("- 1\n", "[1]"),
        ("", "empty `model:"),
        ("model: a\nmodel: b\n", "2: 'model'"),
        ("experiments:\n- model: a\n- model: {}\n", "3: model: id, path shape"),
        ("defaults:\n  workload: {foo: 1}\nexperiments: [{name: a}]\n", "2: 'foo'"),
        ("experiments: []\n", "1: `sweep:`"),
        ("backend: a\nexperiments: [{name: a}]\n", "1: 'backend' `experiments:` `defaults:`"),
        ("1: a\n", "1: key 1"),
        ("repeats: 3\n", "1: repeats: not 3"),
        ("model: {id: a, revision: 0123456}\n", "1: model.revision 0123456 quote"),
        ("repeats: {passes: yes}\n", "1: repeats.passes: yes true false"),
        ("backend: vllm\nvllm: {serve: 1}\n", "2: vllm.serve: true false, not 1"),
        ("slo: {}\n", "1: slo: ttft_ms, tpot_ms e2e_ms"),
        ("workload: {batch_size: '8'}\n", "1: workload.batch_size: not '8' quotes"),
        ("warmup: {profile: steady}\n", "1: warmup.profile: 'steady' quick, lead-in"),
        ("gpus: {count: 0}\n", "1: gpus.count: not 0"),
        ("workload: {arrival: poisson}\n", "1: workload: poisson rate_per_s: 2"),
        ("workload: {rate_per_s: 3}\n", "1: workload: rate_per_s: 3 poisson gamma batch"),
        ("workload: {arrival: single, batch_size: 2}\n", "1: workload: single 2"),
        ("timeouts: {load_s: .inf}\n", "1: timeouts.load_s: inf"),
        (
            "workload: {prompts: {chat: false, chat_template_kwargs: {enable_thinking: false}}}\n",
            "1: workload.prompts: chat_template_kwargs chat: true",
        ),
        (
            "model: shape:tiny-llama\nworkload: {prompts: {chat_template_kwargs: {enable_thinking: false}}}\n",
            "workload.prompts.chat_template_kwargs source: synthetic",
        ),
        ("workload:\n  prompts:\n    chat_template_kwargs: {a: 1, strftime_now: x}\n", "2: strftime_now"),
        ("workload: {prompts: {chat_template_kwargs: [a]}}\n", "1: workload.prompts.chat_template_kwargs"),
        ("workload:\n  <<: {batch_size: 1}\n", "2: `<<:` `defaults:`"),
        ("name: \udcff\udcfe", "6 UTF-8"),
        ("vllm: {tensor_parallel_size: 0}\nbackend: vllm\n", "1: vllm.tensor_parallel_size: not 0"),
        ("backend: tensorrt\ntensorrt: {tensor_parallel_size: 2}\n", "2: tensorrt: tensor_parallel_size tp_size"),
        ("gpus: {count: 1}\nbackend: vllm\nvllm: {tensor_parallel_size: 2}\n", "gpus: 1 split 2; leave gpus out"),
        ("backend: vllm\nvllm: {gpu_memory_utilization: 1.5}\n", "2: vllm.gpu_memory_utilization: 1 1.5"),
        ("a: &a [1]\nb: &b [*a,*a]\n" + "x: !!python/object:os.system 1\n", "3: python/object:os.system"),
        # YAML 1.1 reads these as 8, 1000, 90, and false.
        ("workload: {batch_size: 010}\n", "1: workload.batch_size: 010 zeros"),
        ("workload: {batch_size: 1_000}\n", "1: workload.batch_size: 1_000 _"),
        ("workload: {batch_size: 1:30}\n", "1: workload.batch_size: number '1:30'"),
        ("backend: vllm\nvllm: {enable_prefix_caching: no}\n", "2: vllm.enable_prefix_caching: no true false"),
        ("workload: {prompts: {chat_template_kwargs: {thinking: off}}}\n", "1: chat_template_kwargs.thinking: off"),
        ("model: !x a\n", "1: model: tag '!x'"),
        ("model: a\n---\nmodel: b\n", "2: another document one"),
        ("workload:\n\tbatch_size: 8\n", "2: spaces"),
        ("model: shape:tiny-llama\nfleet: {partition: a}\n", "2: fleet: study's `defaults:`"),
        # Lengths of prompts and answers.
        ("workload: {max_output_tokens: {distribution: lognormal, mean: 512, max: 900}}", "1: lognormal mean std"),
        ("workload: {max_output_tokens: {distribution: uniform, mean: 5, std: 2, max: 9}}", "1: uniform min max"),
        ("workload: {max_output_tokens: {distribution: uniform, min: 5, max: 4}}", "1: min: 5 max: 4"),
        (
            "workload: {max_output_tokens: {distribution: gamma, mean: 50, std: 5, min: 900, max: 999}}",
            "1: 900 999 1% gamma mean: 50",
        ),
        ("workload: {max_output_tokens: {distribution: gamma, mean: 50, std: 5}}", "1: max_output_tokens.max"),
        ("workload: {max_output_tokens: {distribution: normal, mean: 50, std: 5, max: 9}}", "1: lognormal"),
        ("workload: {max_output_tokens: {distribution: gamma, mean: 50, std: 5, maximum: 9}}", "1: 'maximum'"),
        ("workload: {prompts: {input_tokens: many}}", "1: workload.prompts.input_tokens 'many'"),
        # Sweeps.
        ("sweep:\n  backend: [pytorch]\n  workload.batch_size: 3\n", "3: workload.batch_size: 3"),
        ("sweep:\n\n  workload.batch_size: [0]\n", "3: workload.batch_size: not 0"),
        ("sweep: {a.b: [1], zip: {a.b: [1]}}\n", "1: a.b"),
        ("sweep: {zip: {workload.seed: [1, 2], workload.batch_size: [1]}}\n", "1: workload.seed 2, batch_size 1"),
        ("sweep: {zip: [3]}\n", "1: zip: [3]"),
        ("sweep: [1]\n", "1: sweep: [1]"),
        ("defaults: {backend: pytorch}\nsweep: {}\n", "2: `sweep:` `experiments:`"),
        ("sweep: {backend: [pytorch]}\nordr: written\n", "2: 'ordr' 'order'?"),
        ("sweep: {backend: [pytorch]}\norder: random\n", "2: order: 'random'"),
        (f"sweep: {{workload.seed: {[*range(300)]}, workload.batch_size: {[*range(1, 301)]}}}\n", "90,000 20,000"),
        ("sweep: {workload.batch_size.x: [1]}\n", "1: batch_size"),
        ("sweep: {'': [1]}\n", "''"),
        (f"sweep: {{{'a.' * 400}a: [1]}}\n", "1: a.a.a"),
        (f"sweep: {{workload.foo: {[*range(20_000)]}}}\n", "1: 'foo'"),
        ("sweep: {workload.seed: []}\n", "1: workload.seed: []"),
        ("sweep: {workload.arrival: [batch, single]}\n", "1: arrival: single batch_size 4"),
        ("experiments:\n- {name: a}\n- name: a\n  workload: {batch_size: 9}\n", "3: name: 'a'"),
        # Silently ignoring it would measure something else than was meant.
        ("defaults: {vllm: {max_num_seqs: 3}}\nsweep: {workload.batch_size: [1]}\n", "1: 'vllm'"),
        ("sweep: {backend: [3, 4]}\n", "1: backend: not 3"),
    ],
)
def test_a_mistake_in_a_file_is_answered_with_its_line_and_what_was_seen(
    tmp_path: Path, text: str, values: str
) -> None:
    """The place, the value and the next step stand in one line."""
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    line = "x.yaml:" if values[1:2] == ":" else ""
    with raises(ConfigError, *f"{line}{values}".split()) as caught:
        load_study(file, {})
    mistakes = str(caught.value).splitlines()
    assert len(mistakes) == 1 or all(str(file) in mistake for mistake in mistakes)


def test_all_mistakes_of_a_file_are_told_at_once_a_line_for_each(tmp_path: Path) -> None:
    """Whoever mends one does not meet the next a run later; of a union the branch that was meant is told."""
    file = tmp_path / "x.yaml"
    file.write_text("worklod: {}\nrepeats: {restarts: x, passes: -1}\nmodel: {id: 3}\ngpus: {cont: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_study(file, {})
    told = [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]
    assert told == [
        "3: model.id: must be text, not 3; quote it",
        "2: repeats.restarts: must be a number, not the text 'x'; write digits without quotes or colons",
        "2: repeats.passes: write 1 or more, not -1",
        "4: gpus.count: field required, not {'cont': 1}",
        "4: gpus.cont: unknown key 'cont'; did you mean 'count'?",
        "1: worklod: unknown key 'worklod'; did you mean 'workload'?",
    ]
    with pytest.raises(ConfigError) as caught:
        load_study({"measure": {"command": "a {x}", "args": {"x": [1]}}}, {})
    assert str(caught.value).count("\n") == 0
    file.write_text("".join(f"unknown_{number}: 1\n" for number in range(100)))
    with pytest.raises(ConfigError, match="and 80 more") as caught:
        load_study(file, {})
    assert len(str(caught.value).splitlines()) == 20


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("workload: {batch_size: 0o10}", "workload.batch_size", 8),
        ("workload: {batch_size: 0x10}", "workload.batch_size", 16),
        ("warmup: {lead_in_s: 4e1}", "warmup.lead_in_s", 40.0),
        ("name: 2026-11-29", "name", "2026-11-29"),
        ("name: 1:30", "name", "1:30"),
        ("name: 'no'", "name", "no"),
        ("\ufeffname: TRUE.", "name", "TRUE."),
        ("repeats:\t{passes: 3}\r\n", "repeats.passes", 3),
        ("gpus: &two {count: 2}", "gpus.count", 2),
    ],
)
def test_values_without_quotes_are_those_of_yaml_1_2(tmp_path: Path, text: str, setting: str, value: object) -> None:
    """In a file and behind `--set` alike."""
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode())
    [experiment] = load_study(file, {}).experiments
    assert reduce(getattr, setting.split("."), experiment) == value
    assert reduce(lambda inner, key: inner[key], setting.split("."), parse_yaml(text, "--set x")[0]) == value


def test_a_wrong_flag_is_named_as_a_flag_even_beside_a_file(tmp_path: Path) -> None:
    """Whoever typed a flag is not sent to the file."""
    (tmp_path / "x.yaml").write_text("workload: {batch_size: 2}\n")
    with raises(ConfigError, "--batch-size", cause=Cause.INVALID_VALUE):
        load_study(tmp_path / "x.yaml", {"workload.batch_size": 0}, written_as={"workload.batch_size": "--batch-size"})


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("exclusive", "gpu", "'gpu' is not one of machine, gpus; did you mean 'gpus'?"),
        ("launcher", "Dokcer", "'Dokcer' is not one of auto, docker, process, apptainer; did you mean 'docker'?"),
        ("warmup.profile", "leadin", "'leadin' is not one of quick, lead-in; did you mean 'lead-in'?"),
        # As similar to `cpu` as three letters can be, and meant as `cuda`.
        ("accelerator", "gpu", "'gpu' is not one of auto, cpu, cuda"),
        ("exclusive", 1, "1 is not one of machine, gpus"),
        ("name", ["a"], "takes one value, not ['a']; to measure each of them, write it under `sweep:`"),
        ("meter", ["nvml"], "takes one value, not ['nvml']; to measure each of them, write it under `sweep:`"),
    ],
)
def test_a_value_that_is_none_of_several_is_refused_with_all_and_the_nearest(
    setting: str, value: object, told: str
) -> None:
    """In the words of a refused option."""
    with pytest.raises(ConfigError) as caught:
        load_study(None, {setting: value})
    assert str(caught.value) == f"--set {setting}: {told}"


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("engine.tensor_parallel_size", "'tensor_parallel_size' pytorch valid: tp_size"),
        ("engine.dtyp", "'dtyp' 'dtype'?"),
        ("engine", "not 2"),
        ("fleet.time", "fleet: `fleet:` study"),
    ],
)
def test_a_flag_that_no_experiment_takes_is_refused_with_what_to_write(setting: str, values: str) -> None:
    """Only the backend's own section takes what its engine alone knows; no key is said to mean itself."""
    with raises(ConfigError, *values.split()) as caught:
        load_study(None, {setting: 2})
    assert "did you mean 'fleet'" not in str(caught.value)


@pytest.mark.parametrize("gpus", [{"count": 1}, [0]])
def test_a_flag_for_the_cpu_wins_over_gpus_of_the_file_and_nothing_else_does(gpus: object) -> None:
    """A message advises it; what one person writes twice stays a contradiction."""
    written = {"defaults": {"gpus": gpus, "model": "shape:tiny-llama"}, "experiments": [{}, {"gpus": {"count": 2}}]}

    def chosen(flags: dict[str, Any]) -> list[object]:
        return [config.gpus for config in load_study(written, flags).experiments]

    assert chosen({"accelerator": "cpu"}) == ["auto"]
    for flags in ({"accelerator": "cuda"}, dict[str, Any]()):
        assert len(chosen(flags)) == 2
    assert "auto" not in chosen({"accelerator": "cpu", "gpus": {"count": 3}})


def test_flags_win_over_experiments_which_win_over_defaults(tmp_path: Path) -> None:
    """Each layer overrides single settings of the one below, not whole sections."""
    (tmp_path / "x.yaml").write_text(
        "defaults: {workload: {batch_size: 2, max_output_tokens: 9, seed: 5}}\n"
        "experiments: [{workload: {batch_size: 3}}, {name: b}]\n"
    )
    first, second = load_study(tmp_path / "x.yaml", {"workload.seed": 7}).experiments
    assert (first.workload.batch_size, first.workload.max_output_tokens, first.workload.seed) == (3, 9, 7)
    assert (second.workload.batch_size, second.name) == (2, "b")


def test_what_publication_needs_lies_under_what_is_written_and_looser_settings_are_told(tmp_path: Path) -> None:
    """Under a single experiment and under a study's defaults; what was written stays."""
    (tmp_path / "one.yaml").write_text("repeats: {restarts: 2}\nidle: {duration_s: 45}\n")
    (tmp_path / "study.yaml").write_text("defaults: {repeats: {restarts: 2}}\nsweep: {idle.duration_s: [45]}\n")
    for name in ("one", "study"):
        [loose] = load_study(tmp_path / f"{name}.yaml", {}).experiments
        assert loose.looser_than_published()["warmup.profile"] == "warmup.profile=quick instead of lead-in"
        [laid] = load_study(tmp_path / f"{name}.yaml", {}, publishable=True).experiments
        assert (laid.repeats.restarts, laid.idle.duration_s, laid.repeats.passes) == (2, 45, 1)
        assert (laid.warmup.profile, laid.workload.min_duration_s, laid.container.locked) == ("lead-in", 40, True)
        assert laid.looser_than_published() == {"repeats.restarts": "repeats.restarts=2 instead of 3"}
    (tmp_path / "study.yaml").write_text("experiments: 5\n")
    with raises(ConfigError, "study.yaml:1: experiments: ", "5"):
        load_study(tmp_path / "study.yaml", {}, publishable=True)


def test_a_setting_inside_a_short_form_is_laid_over_it_not_instead_of_it(tmp_path: Path) -> None:
    """`prompts: synthetic` with another length is still synthetic; a revision belongs to the model named before it."""
    (tmp_path / "x.yaml").write_text("model: org/name\nworkload: {prompts: synthetic}\n")
    flags = {"workload.prompts.input_tokens": 256, "model.revision": "abc"}
    [config] = load_study(tmp_path / "x.yaml", flags).experiments
    assert (config.prompts.source, config.prompts.input_tokens) == ("synthetic", 256)
    assert (config.model.id, config.model.revision) == ("org/name", "abc")


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("model: org/name", {"id": "org/name"}),
        ("model: ./here", {"path": Path("here")}),
        ("model: 'shape:tiny'", {"shape": "tiny"}),
        # A commit of one repository means nothing in another.
        ("defaults: {model: {id: a/b, revision: abc}}\nexperiments: [{model: 'shape:tiny'}]", {"shape": "tiny"}),
    ],
)
def test_a_model_may_be_a_plain_string_and_another_replaces_it_whole(
    tmp_path: Path, written: str, model: dict[str, Any]
) -> None:
    """An id, a folder and a shape are told apart by how they begin."""
    (tmp_path / "x.yaml").write_text(written)
    [config] = load_study(tmp_path / "x.yaml", {}).experiments
    assert config.model == ModelSpec(**model)


GROUPS = {"kv_cache_config": {"host_cache_size": 0}, "stream_interval": 2}


@pytest.mark.parametrize(
    ("backend", "section", "gpus", "passes_on"),
    [
        ("vllm", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "max_num_partial_prefills": 4}, 4, True),
        ("tensorrt", {"tp_size": 2, "pp_size": 2, **GROUPS}, 4, True),
        ("pytorch", {"device_map": "auto", "foo": 3}, 1, True),
        ("pytorch", {"tp_plan": "auto", "tp_size": 4}, 4, False),
        ("pytorch", {"tp_plan": "auto"}, 2, False),
        ("pytorch", {"data_parallel_size": 2}, 2, False),
    ],
)
def test_a_section_takes_a_gpu_per_worker_and_passes_on_what_it_does_not_declare(
    backend: str, section: dict[str, Any], gpus: int, passes_on: bool
) -> None:
    """Only the installed engine knows all its arguments; the split decides how many GPUs `gpus: auto` takes."""
    config = ExperimentConfig.model_validate({"backend": backend, backend: section})
    assert config.section.gpus_needed() == gpus
    assert not passes_on or config.section.engine_args() == section


# Each within the limit on a file's size; built as text, since no YAML writer would.
HOSTILE = {
    "aliases": "a: &a [x]\n"
    + "".join(f"k{i}: &k{i} [{', '.join(['*a' if not i else f'*k{i - 1}'] * 9)}]\n" for i in range(9)),
    "an alias within itself": "a: &a [*a]\n",
    "a mapping within itself": "a: &a {b: *a}\n",
    "merges": "x: "
    + "{<<: [&m%d " * 30 % tuple(range(30))
    + "{k: 1}"
    + "".join(f", *m{i}, *m{i}]}}" for i in reversed(range(30))),
    "a list": "a: [" + "1," * 490_000 + "1]\n",
    "keys": "".join(f"k{i}: 1\n" for i in range(90_000)),
    "depth": "a: " + "[" * 900_000,
    "block depth": "".join(f"{' ' * i}a:\n" for i in range(1_300)),
    "digits": "workload: {seed: 0x" + "F" * 6_000 + "}\n",
    "base 60": "workload: {seed: " + ":".join(["59"] * 20_000) + "}\n",
    "a null byte": "a: b\0c\n",
    "no mapping to merge": "workload: {<<: [3]}\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_yaml_is_answered_in_one_line_and_a_few_seconds(tmp_path: Path, kind: str) -> None:
    """CPU time, and with room for a busy machine: what was unbounded took minutes, or ended the process."""
    (tmp_path / "x.yaml").write_text(HOSTILE[kind])
    began_s = time.process_time()
    with pytest.raises(ConfigError, match=r"x\.yaml") as caught:
        load_study(tmp_path / "x.yaml", {})
    assert time.process_time() - began_s < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(
    settings=st.fixed_dictionaries(
        {},
        optional={
            "model": st.sampled_from(["a/b", "shape:tiny"]),
            "workload": st.fixed_dictionaries({"batch_size": st.integers(1, 512)}),
            "gpus": st.one_of(st.just("auto"), st.just({"count": 2}), st.just([0, "GPU-x"])),
            "pytorch": st.dictionaries(st.sampled_from(["foo", "bar"]), st.integers()),
        },
    )
)
def test_a_stored_config_reads_back_as_the_same_experiment(settings: dict[str, Any]) -> None:
    """Writing a config down and reading it again must not change what it identifies."""
    config = ExperimentConfig.model_validate(settings)
    again = ExperimentConfig.model_validate(yaml.safe_load(config.model_dump_json()))
    assert again.experiment_id == config.experiment_id
    assert again.section == config.section


def test_a_name_an_interpreter_patience_and_limits_of_latency_do_not_change_what_is_measured() -> None:
    """Two machines that measure the same thing get the same id, whatever they hold its latencies to afterwards."""
    plain = ExperimentConfig()
    named = ExperimentConfig.model_validate(
        {"name": "x", "runner_python": "/usr/bin/python3", "timeouts": {"load_s": 9}, "on_failure": "stop"}
        | {"slo": {"ttft_ms": 200}}
    )
    assert plain.experiment_id == named.experiment_id
    assert plain.experiment_id != ExperimentConfig(power_limit_w=66).experiment_id


def test_a_copy_with_other_settings_has_a_load_key_and_an_id_of_its_own() -> None:
    """Also where those of the original were asked for before."""
    plain = ExperimentConfig()
    keys = (plain.load_key, plain.experiment_id)
    copy, fresh = plain.model_copy(update={"accelerator": "cpu"}), ExperimentConfig(accelerator="cpu")
    assert (copy.load_key, copy.experiment_id) == (fresh.load_key, fresh.experiment_id)
    assert (plain.load_key, plain.experiment_id) == keys


def test_a_setting_that_is_written_out_as_it_is_by_default_is_left_to_the_engine() -> None:
    """A bundle writes all of them out; no engine is told null, its own default, or how published replicas shared."""
    settings = {"attn_implementation": None, "data_parallel_scaling": "strong", "x": 1}
    config = ExperimentConfig.model_validate({"backend": "pytorch", "pytorch": settings})
    written = ExperimentConfig.model_validate(config.model_dump(mode="json"))
    assert written.section.engine_args() == {"x": 1}
    assert written.experiment_id == config.experiment_id


@pytest.mark.parametrize(
    ("written", "sent", "draft"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, None, None),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, {"method": "ngram", "num_speculative_tokens": 3}, None),
        ({"method": "suffix", "model": "suffix"}, {"method": "suffix"}, None),
        ({"model": "a/b", "revision": "c"}, None, ModelSpec(id="a/b", revision="c")),
        ({"model": "./draft", "method": "eagle"}, None, ModelSpec(path=Path("./draft"))),
    ],
)
def test_a_draft_model_is_written_as_a_model_is_and_needs_weights(
    written: dict[str, Any], sent: dict[str, Any] | None, draft: ModelSpec | None
) -> None:
    """Without drafting an experiment keeps the identity that it had before there was such a setting."""
    plain, drafting = (
        ExperimentConfig.model_validate({"backend": "vllm", "vllm": {"speculative_config": part}})
        for part in ({}, written)
    )
    assert (plain.draft, drafting.draft) == (None, draft)
    assert drafting.section.engine_args() == {"speculative_config": sent or written}
    assert "speculative_config" not in plain.model_dump(mode="json")["vllm"]
    if draft:
        with raises(ConfigError, "speculative_config.model"):
            drafting.section.require_drawable()

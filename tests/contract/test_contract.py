"""What every backend promises, shown on a real runner process over a real Unix socket.

The tests run in order: the first one needs a runner that has never loaded anything, and the last one ends it. Those in
between that need no model come before the engines' own tests, which share the runner, and all others after them; the
other files' tests of a loaded runner come between those and the last (`ORDER` in tests/conftest.py).
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import threading
import time
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PATIENCE_S, ids_prompt, refusal, token_bytes, workload
from contract.subjects import TINY_LLAMA, write_config
from seams.config import section_class

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from contract.runner_process import Runner
    from contract.subjects import Subject

TEN_AND_FIFTY = (ids_prompt(10), ids_prompt(50))


def test_describe_names_backend_versions_arrivals_and_arguments(idle_runner: Runner, subject: Subject) -> None:
    """A client can plan against a runner before anything is loaded."""
    described = idle_runner.stub.Describe(pb.DescribeRequest())
    assert described.protocol_version == 4
    assert described.backend == subject.backend
    assert described.framework_version
    assert "grpcio" in described.package_versions
    assert pb.ARRIVAL_BATCH in described.arrivals
    offered = {pb.Arrival.Name(record).removeprefix("ARRIVAL_").lower() for record in described.arrivals}
    declared = section_class(subject.backend).arrivals
    assert declared is None or set(declared) == offered
    assert described.engine_arguments == sorted(described.engine_arguments) != []
    # The engine is not imported until a model is loaded.
    assert "libtorch" not in Path(f"/proc/{idle_runner.process.pid}/maps").read_text()


def test_clock_reading_lies_between_send_and_receive_and_names_this_boot(idle_runner: Runner) -> None:
    """The coordinator can prove that both read one clock."""
    before_ns = time.monotonic_ns()
    clock = idle_runner.stub.Describe(pb.DescribeRequest()).clock
    assert before_ns < clock.monotonic_ns < time.monotonic_ns()
    assert clock.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert clock.time_namespace == Path("/proc/self/ns/time").stat().st_ino


def test_generate_before_load_is_a_failed_precondition(idle_runner: Runner) -> None:
    """There is nothing to generate with."""
    assert idle_runner.refused_pass(workload(), TEN_AND_FIFTY)[0] == "FAILED_PRECONDITION"


def test_load_that_makes_no_sense_is_an_invalid_argument(
    subject: Subject, idle_runner: Runner, model_path: Path, tmp_path: Path
) -> None:
    """No model in the folder, a misspelt argument, a value of the wrong type, an unknown dtype: each is named.

    Stand-ins of engines check no types, and SGLang itself does not either.
    """
    valid = idle_runner.stub.Describe(pb.DescribeRequest()).engine_arguments[0]
    loads: tuple[tuple[Path, dict[str, Any], str], ...] = (
        (tmp_path, {}, str(tmp_path)),
        (model_path, {"engine_args": {f"{valid}x": 1}}, f" has no argument '{valid}x'; nearest: {valid!r}"),
        *(() if subject.stand_in else ((model_path, {"engine_args": {valid: [1]}}, "[1]"),)),
        (model_path, {"dtype": "float31"}, "unknown dtype 'float31'; valid: auto, float32, bfloat16, float16"),
    )
    for path, fields, named in loads:
        code, detail = idle_runner.refused_load(path, **fields)
        assert (code, named in detail) == ("INVALID_ARGUMENT", True), detail


class Touching:
    """What a pickle may hold: something to do for whoever reads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def test_pickled_weights_are_refused_unread(idle_runner: Runner, tmp_path: Path) -> None:
    """Whatever the coordinator let through, and whatever the engine would do."""
    folder = write_config(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touching(tmp_path / "ran")))
    code, detail = idle_runner.refused_load(folder, random_weights=None)
    assert (code, "pytorch_model.bin" in detail) == ("INVALID_ARGUMENT", True), detail
    assert not (tmp_path / "ran").exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert (tmp_path / "ran").exists()


def test_a_models_own_code_does_not_run_unless_it_is_trusted(
    idle_runner: Runner, engine: Subject, tmp_path: Path
) -> None:
    """Whatever names it: the config, and the settings of tokenizer and processor."""
    code = {name: f"own.{name}" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoProcessor")}
    code["AutoTokenizer"] = ["own.Tokenizer", "own.Tokenizer"]  # type: ignore[assignment]
    folder = write_config(tmp_path / "model", model_type="own", auto_map=code)
    for name in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": code, "tokenizer_class": "Own"}))
    (folder / "own.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    status, detail = idle_runner.refused_load(folder, **engine.load_fields)
    assert (status in ("INVALID_ARGUMENT", "INTERNAL"), "trust_remote_code" in detail) == (True, True), detail
    assert not (tmp_path / "ran").exists()


def test_a_config_that_leads_to_another_model_or_to_code_is_refused(
    idle_runner: Runner, engine: Subject, tmp_path: Path
) -> None:
    """VLLM would load and measure that one, whatever its weights are, under this one's name; transformers, the code."""
    other = {"verifier": {"name_or_path": str(write_config(tmp_path / "other")), "architectures": []}}
    for changes, words in (
        ({"speculators_config": {"algorithm": "eagle3", **other}}, "is a draft for another model"),
        ({"_attn_implementation": "nobody/kernel"}, "names code of a hub (nobody/kernel): trust_remote_code"),
    ):
        code, detail = idle_runner.refused_load(write_config(tmp_path / "model", **changes), **engine.load_fields)
        assert (code, words in detail) == ("INVALID_ARGUMENT", True), detail


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"random_weights": None}, "INVALID_ARGUMENT", "cannot load"),
        ({"gpu_uuids": ["GPU-1234"]}, "FAILED_PRECONDITION", "asked for GPUs [GPU-1234], but "),
    ],
)
def test_load_without_weights_or_on_other_gpus_is_refused(
    idle_runner: Runner, engine: Subject, model_path: Path, fields: dict[str, Any], code: str, named: str
) -> None:
    """Neither is replaced by something that could be had."""
    status, detail = idle_runner.refused_load(model_path, **{**engine.load_fields, **fields})
    assert (status, named in detail) == (code, True), detail


def test_load_tells_what_is_in_effect(runner: Runner, subject: Subject) -> None:
    """The environment, and arguments read back."""
    assert runner.model is not None
    loaded = runner.model[1]
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective["dtype"] == subject.dtype
    arguments = set(runner.stub.Describe(pb.DescribeRequest()).engine_arguments)
    # Left out, for an argument repeated from the order would pass for what is in effect.
    assert arguments - effective.keys() == arguments & subject.unread
    devices = dict.fromkeys(subject.gpus[:1], TINY_LLAMA["num_hidden_layers"])
    assert json.loads(loaded.environment.parallelism_json) == {"kind": "none", "devices": devices}
    assert loaded.environment.parameter_count > 0
    bytes_each = {"float32": 4, "bfloat16": 2}[subject.dtype]
    assert loaded.environment.weight_bytes == bytes_each * loaded.environment.parameter_count
    assert tuple(loaded.environment.visible_gpu_uuids) == subject.gpus


def test_second_load_is_refused_until_unload(runner: Runner, model_path: Path) -> None:
    """A model is never swapped silently."""
    code, detail = runner.refused_load(model_path)
    assert code == "FAILED_PRECONDITION"
    assert "Unload" in detail


def test_two_prompts_of_ten_and_fifty_tokens_make_forty_output_tokens(runner: Runner) -> None:
    """Padding is neither prompt nor output."""
    result = runner.generate(workload(max_output_tokens=20, return_token_ids=True), TEN_AND_FIFTY)
    assert result.summary.output_tokens == 40
    assert result.summary.prompt_tokens == 60
    assert [record.prompt_tokens for record in result.requests] == [10, 50]
    assert [len(record.output_ids.ids) for record in result.requests] == [20, 20]
    assert {record.finish_reason for record in result.requests} == {"length"}
    assert result.summary.prompt_repeats == 0


def test_instants_are_ordered_inside_the_span_and_tokens_rise_to_the_total(runner: Runner) -> None:
    """Submitted, first token and last token of each request follow one another; the series counts the same tokens."""
    before_ns = time.monotonic_ns()
    result = runner.generate(workload(max_output_tokens=20), [ids_prompt(5)] * 5)
    span = result.summary.span
    assert before_ns < span.start_ns < span.end_ns < time.monotonic_ns()
    assert [record.index for record in result.requests] == [0, 1, 2, 3, 4]
    for record in result.requests:
        assert span.start_ns <= record.submitted_ns < record.first_token_ns < record.finished_ns <= span.end_ns
    assert len(result.at_ns) == len(result.output_tokens) >= 20
    assert all(a < b for a, b in itertools.pairwise(result.at_ns))
    assert all(a < b for a, b in itertools.pairwise(result.output_tokens))
    assert result.output_tokens[-1] == result.summary.output_tokens == 100
    assert result.at_ns[0] == min(record.first_token_ns for record in result.requests)
    assert result.at_ns[-1] <= span.end_ns


@pytest.mark.parametrize("arrival", [pb.ARRIVAL_BATCH, pb.ARRIVAL_CLOSED])
def test_steps_follow_one_another_inside_the_span_and_add_up_to_the_pass(
    runner: Runner, subject: Subject, arrival: pb.Arrival
) -> None:
    """Each prompt token is computed once, and each output token but a request's first decoded; or no step is told."""
    if arrival not in runner.stub.Describe(pb.DescribeRequest()).arrivals:
        return
    sizes = ((10, 3), (200, 9), (4, 5), (30, 2), (5, 1))
    prompts = [ids_prompt(length, max_output_tokens=limit) for length, limit in sizes]
    result = runner.generate(workload(arrival=arrival, ignore_eos=False), prompts)
    steps, summary = result.steps, result.summary
    if not subject.tells_steps:
        assert steps == pb.StepSeries()
        return
    columns = [list(column) for _, column in steps.ListFields()]
    assert {len(column) for column in columns} == {len(steps.end_ns)}
    assert len(columns) == len(steps.DESCRIPTOR.fields)
    edges = [edge for step in zip(steps.start_ns, steps.end_ns, strict=True) for edge in step]
    edges = [summary.span.start_ns, *edges, summary.span.end_ns]
    assert all(a <= b for a, b in itertools.pairwise(edges))
    # No token is there before its step has ended.
    assert all(number < bisect_right(steps.end_ns, at_ns) for number, at_ns in enumerate(sorted({*result.at_ns})))
    assert sum(steps.prompt_tokens) == summary.prompt_tokens - summary.cached_prompt_tokens
    assert sum(steps.decoded_tokens) == summary.output_tokens - summary.requests
    assert {1, 2} >= set(steps.sequences)


def test_a_static_batch_is_a_prefill_and_a_step_for_each_further_token(runner: Runner, subject: Subject) -> None:
    """Each sequence reads its prompt and the tokens since, the step's own included."""
    steps = runner.generate(workload(max_output_tokens=5), [ids_prompt(9)] * 4).steps
    if subject.tells_steps:
        assert list(steps.prompt_tokens) == [18, 0, 0, 0, 0] * 2
        assert list(steps.decoded_tokens) == [0, 2, 2, 2, 2] * 2
        assert list(steps.sequences) == [2] * 10
        assert list(steps.context_tokens) == [18, 20, 22, 24, 26] * 2


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        # SGLang keeps six for itself.
        (ids_prompt(500), "500 + 40 positions, and the model has 5"),
        (pb.Prompt(token_ids=token_bytes([1, 512])), "holds id 512, and the model has 512"),
        (pb.Prompt(token_ids=token_bytes([])), "prompt 1 has no tokens"),
        (pb.Prompt(token_ids=b"12345"), "token ids of prompt 1 are no whole uint32s"),
        (pb.Prompt(messages_json='[["user", "hello"]]'), "messages_json of prompt 1 is no JSON list of messages"),
        (pb.Prompt(messages_json='[{"role": "user", "content": 1}]'), "messages_json of prompt 1 must hold messages"),
        (pb.Prompt(messages_json='[{"role": "user", "content": "hello"}]'), "this model folder has no tokenizer"),
        (pb.Prompt(text="hello"), "this model folder has no tokenizer; send prompts as token ids"),
    ],
)
def test_prompt_that_the_model_cannot_run_is_refused(
    runner: Runner, engine: Subject, prompt: pb.Prompt, named: str
) -> None:
    """An engine would cut the prompt, or end."""
    code, detail = runner.refused_pass(workload(max_output_tokens=40), [ids_prompt(3), prompt])
    assert (code, named in detail) == ("INVALID_ARGUMENT", True), detail


def test_single_arrival_runs_one_request_at_a_time(runner: Runner) -> None:
    """The next request is submitted after the last token of the one before."""
    result = runner.generate(workload(arrival=pb.ARRIVAL_SINGLE, in_flight=4), [ids_prompt(4)] * 3)
    assert all(a.finished_ns <= b.submitted_ns for a, b in itertools.pairwise(result.requests))


def test_closed_arrival_replaces_a_finished_request_at_once(runner: Runner) -> None:
    """The number in flight never leaves `in_flight` until prompts run out; a backend without it refuses it by name."""
    prompts = [ids_prompt(3, max_output_tokens=limit) for limit in (2, 90, 4, 6, 3)]
    closed = workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2)
    if pb.ARRIVAL_CLOSED not in runner.stub.Describe(pb.DescribeRequest()).arrivals:
        code, detail = runner.refused_pass(closed, prompts)
        assert (code, "'closed'" in detail) == ("INVALID_ARGUMENT", True), detail
        return
    result = runner.generate(closed, prompts)
    third = result.requests[2]
    assert result.requests[0].finished_ns <= third.submitted_ns < result.requests[1].finished_ns
    assert result.summary.output_tokens == 105


def test_open_loop_arrivals_follow_the_schedule_and_never_come_early(runner: Runner) -> None:
    """Each request is intended at its instant since the pass's start, and submitted at or after it."""
    if pb.ARRIVAL_OPEN not in runner.stub.Describe(pb.DescribeRequest()).arrivals:
        return
    arrival_ns = [i * 10_000_000 + 7 for i in range(30)]
    result = runner.generate(
        workload(arrival=pb.ARRIVAL_OPEN, in_flight=50, arrival_ns=arrival_ns), [ids_prompt(3)] * 30
    )
    assert [record.intended_ns - result.summary.span.start_ns for record in result.requests] == arrival_ns
    assert all(record.submitted_ns >= record.intended_ns for record in result.requests)


def test_batches_follow_one_another_each_submitted_at_one_instant_and_the_last_may_be_partial(runner: Runner) -> None:
    """Five prompts, two in flight: 2 + 2 + 1; a prompt's own limit overrides the workload's."""
    result = runner.generate(workload(), [ids_prompt(4, max_output_tokens=3), *[ids_prompt(4)] * 4])
    assert [record.output_tokens for record in result.requests] == [3, 5, 5, 5, 5]
    groups = itertools.groupby(result.requests, key=lambda record: record.submitted_ns)
    assert [len(list(group)) for _, group in groups] == [2, 2, 1]
    assert result.summary.requests == 5
    assert all(result.requests[i].finished_ns <= result.requests[i + 2].submitted_ns for i in (0, 2))


def test_min_requests_repeats_the_prompts_in_order(runner: Runner) -> None:
    """Seven requests from three prompts are two and a third rounds; the summary comes once the pass has settled."""
    prompts = [ids_prompt(3), ids_prompt(4), ids_prompt(5)]
    result = runner.generate(workload(min_requests=7, settle_s=0.3), prompts)
    assert time.monotonic_ns() - result.summary.span.end_ns >= 0.3e9
    assert [record.prompt_tokens for record in result.requests] == [3, 4, 5, 3, 4, 5, 3]
    assert result.summary.prompt_repeats == 2


def test_min_duration_is_reached_and_heartbeats_come_meanwhile(runner: Runner) -> None:
    """A pass goes on until it is long enough, and says so each second; a minute's silence would be taken for a hang."""
    # On a busy machine heartbeats come late: a longer pass must have some then. The first and the last always come.
    for min_duration_s in (1.6, 10, 30):
        result = runner.generate(workload(min_duration_s=min_duration_s), TEN_AND_FIFTY)
        assert result.summary.span.end_ns - result.summary.span.start_ns >= min_duration_s * 1e9
        at_ns = [beat.at_ns for beat in result.heartbeats]
        if came := any(at_ns[0] < instant_ns < result.summary.span.end_ns for instant_ns in at_ns):
            break
    assert came
    tokens = [beat.output_tokens for beat in result.heartbeats]
    assert tokens == sorted(tokens)
    assert 0 < tokens[-1] <= result.summary.output_tokens


def test_a_pass_goes_on_until_its_client_half_closes(runner: Runner) -> None:
    """Three times its minimum, prompts in order; what is in the engine then finishes."""
    kinds = runner.stub.Describe(pb.DescribeRequest()).arrivals
    arrival = pb.ARRIVAL_CLOSED if pb.ARRIVAL_CLOSED in kinds else pb.ARRIVAL_BATCH
    result, might_end_ns = runner.hold(workload(arrival=arrival, min_duration_s=0.3), TEN_AND_FIFTY, 0.9)
    assert result.summary.span.end_ns > might_end_ns
    assert [record.prompt_tokens for record in result.requests[:5]] == [10, 50, 10, 50, 10]
    assert {record.output_tokens for record in result.requests} == {5}
    for beat in result.heartbeats:
        assert 0 <= beat.requests_submitted - beat.requests_finished <= 2
    last = result.heartbeats[-1]
    assert (last.pass_over, last.requests_submitted, last.requests_finished) == (True, *[result.summary.requests] * 2)


def test_cancelled_pass_ends_soon_and_the_next_one_works(runner: Runner) -> None:
    """A busy engine still says what it is, and ten minutes of work stop at once when the client goes away."""
    call = runner.start_long()
    try:
        assert runner.stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S).protocol_version == 4
    finally:
        # Else it would be in the way of all later tests.
        call.cancel()
    assert runner.generate(workload(), TEN_AND_FIFTY).summary.output_tokens == 10


def test_pass_without_prompts_workload_or_known_arrival_is_an_invalid_argument(runner: Runner) -> None:
    """Each part of a pass is needed."""
    code, detail = runner.refused_pass(workload(arrival=pb.ARRIVAL_UNSPECIFIED), TEN_AND_FIFTY)
    assert (code, "arrival 0" in detail) == ("INVALID_ARGUMENT", True), detail
    code, detail = runner.refused_pass(workload(), [])
    assert (code, detail) == ("INVALID_ARGUMENT", "a pass needs at least one prompt")
    prompts_only = pb.GenerateRequest(prompts=pb.PromptChunk(prompts=TEN_AND_FIFTY))
    assert refusal(runner.stub.Generate(iter([prompts_only])))[0] == "INVALID_ARGUMENT"


def test_log_likelihoods_need_a_tokenizer_and_an_engine_that_tells_them(runner: Runner, subject: Subject) -> None:
    """The others say so, by the backend's name."""
    asked = pb.LogLikelihoodRequest(pairs=[pb.TextPair(context="a", continuation="b")], batch_size=1)
    code, detail = refusal(runner.stub.LogLikelihood(asked) for _ in (1,))
    if subject.name in ("pytorch", "vllm"):
        assert (code, "no tokenizer" in detail) == ("INVALID_ARGUMENT", True), detail
    else:
        assert (code, detail.split(",")[0]) == ("UNIMPLEMENTED", subject.backend)


def test_diagnose_finds_the_backends_packages(runner: Runner, subject: Subject) -> None:
    """Every finding has a name, a value and a known status."""
    findings = runner.stub.Diagnose(pb.DiagnoseRequest()).findings
    assert findings
    assert {finding.status for finding in findings} == subject.statuses


def test_sigterm_ends_a_running_pass_and_the_process(loaded_runner: Runner) -> None:
    """A stopped runner leaves with status 0, and its client reads CANCELLED."""
    runner = loaded_runner
    before = len(runner.log.read_text())
    call = runner.start_long()
    threading.Timer(0.2, runner.process.send_signal, [signal.SIGTERM]).start()
    assert refusal(call)[0] == "CANCELLED"
    assert runner.process.wait(timeout=120) == 0
    # What an engine's server says of its own end is its own.
    said = runner.log.read_text()[before:].splitlines()
    assert [line for line in said if "Traceback" in line and not line.startswith("(APIServer")] == []

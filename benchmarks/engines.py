"""Live engines to compare on: a real runner process, loaded once, that also knows a bare way to run a pass.

Knows no statistics and no meter.
"""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from arms import Way

from wattdock.analysis.performance import tpot_s
from wattdock.config import ExperimentConfig, WorkloadSpec
from wattdock.errors import RunnerError, WattdockError
from wattdock.files import last_lines
from wattdock.inputs import load_prompts
from wattdock.inputs.shapes import resolve_shape
from wattdock.launch.process import launch
from wattdock.launch.protocol import LaunchSpec
from wattdock.launch.runners import REPO
from wattdock.runner import LoadRequest, PassRequest, RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    from wattdock.host import Gpu
    from wattdock.records.passes import PassRecord
    from wattdock.records.snapshot import RunnerEnvironment
    from wattdock.runner import Heartbeat

LAUNCH_S, LOAD_S, SILENCE_S, STALL_S = 120, 900, 120, 600
# A block must not end up shorter than asked for because the machine has become a little faster.
HEADROOM = 1.25
# A trial this much shorter than a block is long enough to tell how much work fills one.
TRIAL_SHARE = 0.2


@dataclass(frozen=True)
class Block:
    """One block's work.

    Attributes:
        requests: Requests of each pass.
        passes: Static batches are a pass each, so that two arms can take turns after every one of them.
        expected_s: How long the block takes at the best speed so far, including the time between its passes.
    """

    requests: int
    passes: int
    expected_s: float


@dataclass(frozen=True)
class Size:
    """What is computed: prompts of `input_tokens` random ids, `output_tokens` new ones each, greedy, to their end.

    Attributes:
        in_flight: Requests at a time; PyTorch serves them as one static batch.
        dedicated_cpu: The runner gets one CPU, with all its threads, and nothing else of the benchmark runs there.
    """

    backend: Literal["pytorch", "vllm"]
    shape: str
    dtype: str
    arrival: Literal["batch", "closed"]
    in_flight: int
    input_tokens: int
    output_tokens: int
    engine_args: Mapping[str, object] = field(default_factory=dict)
    dedicated_cpu: bool = False

    def __str__(self) -> str:
        return (
            f"{self.shape}, random weights, {self.dtype}, {self.in_flight} in flight ({self.arrival}), "
            f"{self.input_tokens} in, {self.output_tokens} out{', on a CPU of its own' if self.dedicated_cpu else ''}"
        )


# On a CPU the tiny model keeps a step to milliseconds, so that what is done once per step shows. PyTorch's passes are
# short because a host's speed wanders on every time scale: the more often two arms take turns, the less of it is left.
# Four or eight tokens weigh what the runner does once per pass more heavily than any pass that people run.
# On a GPU its model is small and deep (30 layers), so that every step waits for the host, as one of an 8 B model does.
# It stays on one CPU: moved about by the scheduler, its passes scatter three times as much.
CPU_SIZES = {
    "pytorch": Size("pytorch", "tiny-llama", "float32", "batch", 1, 64, 8, dedicated_cpu=True),
    "vllm": Size("vllm", "tiny-llama", "float32", "closed", 8, 64, 64),
}
GPU_SIZES = {
    "pytorch": Size("pytorch", "smollm2-135m", "bfloat16", "batch", 1, 64, 4, dedicated_cpu=True),
    "vllm": Size("vllm", "llama-3.1-8b", "bfloat16", "closed", 128, 512, 512, {"max_model_len": 2048}),
}


class LiveEngine:
    """A loaded runner; every pass gets prompts that no other pass has had.

    Attributes:
        description: The engine with its version, and the size of the work.
    """

    def __init__(self, client: RunnerClient, size: Size, runner: RunnerEnvironment, vocab_size: int | None) -> None:
        self.size = size
        self.description = f"{runner.framework} {runner.framework_version}, {size}"
        self._client, self._vocab_size, self._numbers = client, vocab_size, count()

    def run(self, way: Way, requests: int, heartbeat: Callable[[Heartbeat], bool] = lambda _: True) -> PassRecord:
        """Serve `requests` prompts and return the pass as the coordinator sees it.

        Raises:
            RunnerError: The pass failed, or computed another number of tokens than was asked for.
        """
        size = self.size
        workload = {"prompts": {"source": "synthetic", "input_tokens": size.input_tokens, "count": requests}}
        config = ExperimentConfig.model_validate({"workload": workload})
        prompts = load_prompts(config, pass_index=next(self._numbers), vocab_size=self._vocab_size)
        spec = WorkloadSpec(batch_size=size.in_flight, max_output_tokens=size.output_tokens, arrival=size.arrival)
        request = PassRequest(
            spec,
            # The bare runner takes its way from the seed.
            replace(prompts, seed=int(way)),
            min_requests=requests,
            min_duration_s=spec.min_duration_s,
            ignore_eos=True,
            # What a bare pass does not keep, it cannot return.
            return_content=way is Way.RUNNER,
        )
        done = self._client.generate(request, silence_s=SILENCE_S, stall_s=STALL_S, heartbeat=heartbeat)
        if done.output_tokens != requests * size.output_tokens or done.cached_prompt_tokens:
            raise RunnerError(
                f"a pass of {requests} × {size.output_tokens} tokens gave {done.output_tokens}, "
                f"with {done.cached_prompt_tokens} prompt tokens from a cache; blocks must do equal work"
            )
        return done

    def warm_up(self, ways: Sequence[Way], block_s: float) -> Block:
        """Run each way at least twice, and return the work that fills a block of at least `block_s` seconds."""
        requests = self.size.in_flight
        for way in ways:
            self.run(way, requests)
        between_s = math.inf
        for way in ways:
            began_s = time.perf_counter()
            span = self.run(way, requests).span
            between_s = min(between_s, time.perf_counter() - began_s - span.duration_s)
        while (took_s := min(self.run(way, requests).span.duration_s for way in ways)) < TRIAL_SHARE * block_s:
            requests *= 2
        round_s = took_s * self.size.in_flight / requests
        rounds = math.ceil(HEADROOM * block_s / round_s)
        passes = rounds if self.size.arrival == "batch" else 1
        return Block(rounds // passes * self.size.in_flight, passes, rounds * round_s + passes * between_s)


def duration_s(measured: PassRecord) -> float:
    """Return the length of a pass's span, in seconds."""
    return measured.span.duration_s


def tpot_p99_s(measured: PassRecord) -> float:
    """Return the 99th percentile over a pass's requests of the time per output token after the first, in seconds.

    Raises:
        RunnerError: No request has one.
    """
    known_s = [each_s for request in measured.requests if (each_s := tpot_s(request)) is not None]
    if not known_s:
        raise RunnerError("no request of the pass has more than one token, so there is no TPOT")
    # However few requests there are, both arms give the same quantity of the same work.
    return float(np.quantile(known_s, 0.99))


@contextmanager
def live_engine(
    size: Size, *, python: Path, keep_pythonpath: bool, gpu: Gpu | None, home: Path
) -> Iterator[LiveEngine]:
    """Start a runner on one GPU, or on the CPU, and load the model; end it afterwards.

    Args:
        python: Interpreter with the backend's packages.
        home: Folder for the model's config and the runner's log.

    Raises:
        WattdockError: It did not start or load.
    """
    home.mkdir(exist_ok=True)
    model = resolve_shape(size.shape, home=home, progress=lambda _: None)
    backend = f"bare_{size.backend}"
    spec = LaunchSpec(
        backend=backend,
        runner_dir=REPO / "benchmarks/runners" / backend,
        log_path=home / f"{backend}.log",
        gpu_indices=() if gpu is None else (gpu.index,),
        gpu_uuids=() if gpu is None else (gpu.uuid,),
        model_path=model.path,
    )
    request = LoadRequest(
        model_path=model.path,
        dtype=size.dtype,
        engine_args=size.engine_args,
        weights_seed=0,
        gpu_uuids=spec.gpu_uuids,
    )
    with one_cpu() if size.dedicated_cpu else nullcontext():
        launched = launch(spec, python=python, keep_pythonpath=keep_pythonpath)
    with launched, RunnerClient(launched) as client:
        try:
            client.wait_ready(LAUNCH_S)
            loaded, _ = client.load(request, timeout_s=LOAD_S, progress=lambda _: None)
            yield LiveEngine(client, size, loaded, model.vocab_size)
        except WattdockError:
            # The log goes with its folder.
            sys.stderr.write(last_lines(spec.log_path) + "\n")
            raise


@contextmanager
def one_cpu() -> Iterator[None]:
    """Start processes in the block on one CPU, which the caller leaves for good; a single CPU is shared."""
    cpus = os.sched_getaffinity(0)
    dedicated = {max(cpus)}
    if cpus == dedicated:
        yield
        return
    os.sched_setaffinity(0, dedicated)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus - dedicated)

"""A TensorRT-LLM engine: start it, read back what it runs with, receive its answers.

The engine works by itself. TensorRT-LLM hands responses to the event loop that made the request, so an event loop runs
on a thread for the life of the engine, and puts answers into a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import threading
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from safetensors.torch import save_file
from tensorrt_llm import LLM, SamplingParams
from wattdock_tensorrt import effective_engine_args, engine_settings

from wattdock_proto.context import model_context
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import HANG, WORKER, EngineFailed, InvalidRequest, OutOfMemory, lacks_memory
from wattdock_runner.folder_model import read_model, weights_folder
from wattdock_runner.process import Processes, descendants
from wattdock_runner.serving import Engine
from wattdock_runner.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.folder_model import FolderModel
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer
    from wattdock_runner.values import LoadedModel, LoadOrder, Report, Workload

T = TypeVar("T")
# The module that mpi4py runs in each worker that TensorRT-LLM starts.
WORKER_MODULE = b"mpi4py.futures"
# How often the workers are looked at: how soon a dead worker is noticed, and a cancelled pass ends.
WATCH_S = 0.1
DRAIN_S = 120.0
ABORT_S = 20.0
# How long TensorRT-LLM and then its processes may take to end; together less than a runner has.
SHUTDOWN_S, GRACE_S = 8.0, 1.0
REASONS = ("stop", "length")
# Classes that TensorRT-LLM raises for values that it does not take, or not together; pydantic's errors are ValueErrors.
REFUSALS = (AssertionError, NotImplementedError, OSError, TypeError, ValueError)


def load_engine(order: LoadOrder, report: Report) -> tuple[TensorrtEngine, LoadedModel]:
    """Start an engine with the model of `order` on the order's GPUs.

    Raises:
        WrongState: There is no GPU, or torch sees other GPUs than requested.
        InvalidRequest: TensorRT-LLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    model = read_model(torch, transformers, order, "TensorRT-LLM")
    settings = engine_settings(order, model.dtype)
    try:
        with weights_folder(torch, save_file, order, model, report) as folder:
            report("starting the engine")
            llm = LLM(**settings | {"model": str(folder)})
    except (MemoryError, *REFUSALS, RuntimeError) as error:
        raise start_fault(error, order.model_path) from error
    engine = TensorrtEngine(llm, model)
    effective = effective_engine_args(llm.args)
    engine.vocab_size = model.text.vocab_size
    engine.context_tokens = effective["max_seq_len"] or model_context(model.text.to_dict())
    engine.max_in_flight, engine.in_flight_argument = effective["max_batch_size"], "max_batch_size"
    return engine, model.loaded(effective["tp_size"], effective["pp_size"], effective)


def start_fault(error: Exception, model: Path) -> Exception:
    """Return what to raise for an engine that did not start; the telling error may be the cause of another error."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    text = "; ".join(map(str, causes))
    is_memory = any(isinstance(cause, (MemoryError, torch.OutOfMemoryError)) for cause in causes)
    if is_memory or lacks_memory(text):
        return OutOfMemory(f"TensorRT-LLM: {text}")
    if isinstance(error, REFUSALS):
        return InvalidRequest(f"TensorRT-LLM cannot load {model}: {text}")
    return EngineFailed(f"TensorRT-LLM did not start: {text}", WORKER if "worker" in text else None)


class TensorrtEngine(Engine):
    """A `tensorrt_llm.LLM` and its workers.

    Attributes:
        workers: The engine's computing processes.
    """

    def __init__(self, llm: Any, model: FolderModel) -> None:
        self.llm, self.tokenizer, self.eos_ids = llm, model.tokenizer, model.ids.eos
        self.workers = Processes(descendants(os.getpid(), WORKER_MODULE))
        self._sampling: list[SamplingParams] = []
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._streams: set[Any] = set()
        self._reading: set[Future[None]] = set()
        self._turn_ns: int | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:  # noqa: ARG002
        """Refuse a prompt that is too long for a step of the engine, and make the settings of each prompt."""
        args, longest = self.llm.args, max(len(prompt.ids) for prompt in prompts)
        if longest > args.max_num_tokens and not args.enable_chunked_prefill:
            raise InvalidRequest(
                f"a prompt has {longest} tokens, and this engine computes {args.max_num_tokens} in one step; "
                "raise max_num_tokens or set enable_chunked_prefill"
            )
        self._answers = queue.SimpleQueue()
        self._stop = StopStrings(self.tokenizer, workload.stop)
        self._sampling = [
            sampling_params(workload, prompt.position, prompt.max_output_tokens, self.eos_ids) for prompt in prompts
        ]

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; name a lack of memory, and end all requests."""
        try:
            return work()
        except RuntimeError as error:
            if lacks_memory(str(error)):
                raise OutOfMemory(f"{doing}: {error}") from error
            raise
        finally:
            if self.workers.all_live():
                for stream in list(self._streams):
                    self._loop.call_soon_threadsafe(stream.abort)
                wait(list(self._reading), timeout=ABORT_S)
            for future in list(self._reading):
                future.cancel()

    def drain(self) -> None:
        """Return when the engine has nothing left to compute.

        The LLM API cannot ask a device. But an engine works in order: once it has answered a request of a single token
        that was sent last, everything before has been computed.

        Raises:
            EngineFailed: A worker died, or the engine did not answer within two minutes.
        """
        sampling = SamplingParams(max_tokens=1, end_id=-1, detokenize=False)
        answered = asyncio.run_coroutine_threadsafe(self._exhaust([0], sampling), self._loop)
        deadline_s = time.monotonic() + DRAIN_S
        while not wait([answered], timeout=WATCH_S).done:
            self._require_alive()
            if time.monotonic() > deadline_s:
                raise EngineFailed(f"TensorRT-LLM did not answer a request of one token within {DRAIN_S:.0f} s", HANG)
        answered.result()

    async def _exhaust(self, ids: list[int], sampling: SamplingParams) -> None:
        async for _ in self.llm.generate_async(ids, sampling, streaming=True):
            pass

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Send the engine a request."""
        reading = asyncio.run_coroutine_threadsafe(self._read(request, prompt), self._loop)
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    async def _read(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Put each answer of a request, or the error that ended the request, into the queue."""
        stream = reason = None
        try:
            stream = self.llm.generate_async(prompt.ids, self._sampling[prompt.position], streaming=True)
            self._streams.add(stream)
            async for output in stream:
                completion, request.cached_prompt_tokens = output.outputs[0], output.cached_tokens
                self._answers.put((request, self._instant(), list(completion.token_ids_diff), None))
                reason = completion.finish_reason or reason
                # TensorRT-LLM's own stop strings are whole tokens, and it has no tokenizer here.
                if self._stop.end(completion.token_ids):
                    stream.abort()
                    reason = "stop"
                    break
            self._answers.put((request, self._instant(), (), reason if reason in REASONS else "abort"))
        except Exception as error:  # noqa: BLE001 - raised again by `step`, on the thread that serves the pass
            self._answers.put(error)
        finally:
            self._streams.discard(stream)

    def _instant(self) -> int:
        """Return the same instant for all answers that the event loop handles in a turn: those of an engine step."""
        if self._turn_ns is None:
            self._turn_ns = now_ns()
            self._loop.call_soon(setattr, self, "_turn_ns", None)
        return self._turn_ns

    def step(self, until_ns: int | None) -> list[Answer]:
        """Wait for answers, until `until_ns` at most."""
        patience_s = WATCH_S if until_ns is None else min(WATCH_S, max(0, until_ns - now_ns()) / NS_PER_S)
        answers: list[Answer] = []
        with contextlib.suppress(queue.Empty):
            answer = self._answers.get(timeout=patience_s)
            while True:
                if isinstance(answer, BaseException):
                    raise answer
                answers.append(answer)
                answer = self._answers.get_nowait()
        if not answers:
            self._require_alive()
        return answers

    def _require_alive(self) -> None:
        """Raise if a worker has ended: TensorRT-LLM itself would wait for ever."""
        if not self.workers.all_live():
            raise EngineFailed("a process of TensorRT-LLM's engine died", WORKER)

    def end(self) -> None:
        """End the engine with its processes."""
        everything = Processes(descendants(os.getpid()))
        # TensorRT-LLM waits without end for workers that may have been killed.
        ending = threading.Thread(target=self.llm.shutdown, name="engine-shutdown", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_S if self.workers.all_live() else 0.0)
        everything.end(0.0 if ending.is_alive() else GRACE_S)
        self.workers.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.collect()


def sampling_params(workload: Workload, position: int, limit: int, eos_ids: Sequence[int]) -> SamplingParams:
    """Return settings that leave nothing to a checkpoint's defaults; each prompt has its seed.

    Without both `top_k` and `top_p` TensorRT-LLM is greedy at any temperature, so both are always set.
    """
    sampling = workload.sampling
    is_greedy = sampling.temperature == 0
    return SamplingParams(
        max_tokens=limit,
        temperature=None if is_greedy else sampling.temperature,
        top_k=1 if is_greedy else sampling.top_k,
        top_p=None if is_greedy else sampling.top_p,
        seed=None if is_greedy else workload.seed + position,
        # TensorRT-LLM has a single end id; further ids are stop words, which it cuts off unless told to include them.
        end_id=eos_ids[0] if eos_ids else -1,
        stop_token_ids=list(eos_ids[1:]) or None,
        include_stop_str_in_output=True,
        ignore_eos=workload.ignore_eos,
        detokenize=False,
    )

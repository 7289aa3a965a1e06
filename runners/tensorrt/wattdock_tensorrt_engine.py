"""One running TensorRT-LLM engine, as the common loop drives it: it works by itself and streams answers.

TensorRT-LLM hands responses to the event loop that a request was made on, so a loop of its own runs on a thread for
the life of the engine, and puts answers into a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import select
import signal
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tensorrt_llm import SamplingParams

from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory
from wattdock_runner.serving import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from wattdock_runner.backend import Workload
    from wattdock_runner.prompts import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer

T = TypeVar("T")

# How soon a dead worker is seen, and a cancelled pass ends.
WATCH_S = 0.1
DRAIN_S = 120.0
ABORT_S = 20.0
# Within the ten seconds that a runner has to end.
SHUTDOWN_S = 8.0
REASONS = ("stop", "length")
# TensorRT-LLM has no exception class for these, and they come from another process as text.
MEMORY_WORDS = ("out of memory", "OutOfMemory", "insufficient memory", "Insufficient memory", "not enough memory")
# What mpi4py, with which TensorRT-LLM starts its workers, runs in each of them.
WORKER_MODULE = b"mpi4py.futures"


class TensorrtEngine(Engine):
    """A `tensorrt_llm.LLM` and its workers.

    Attributes:
        workers: Handles (pidfd) of the engine's computing processes.
    """

    in_flight_argument = "max_batch_size"

    def __init__(self, llm: Any, tokenizer: Any, eos_ids: tuple[int, ...], text_config: Any) -> None:
        self.llm, self.tokenizer, self.eos_ids = llm, tokenizer, eos_ids
        self.vocab_size = text_config.vocab_size
        self.context_tokens = llm.args.max_seq_len or getattr(text_config, "max_position_embeddings", None)
        self.max_in_flight = llm.args.max_batch_size
        self.workers = [os.pidfd_open(pid) for pid in descendants(os.getpid()) if WORKER_MODULE in _command(pid)]
        self._sampling: list[SamplingParams] = []
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._streams: set[Any] = set()
        self._reading: set[Future[None]] = set()
        self._turn_ns: int | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:  # noqa: ARG002
        """Refuse a prompt that one step cannot compute, and make settings for each."""
        args, longest = self.llm.args, max(len(prompt.ids) for prompt in prompts)
        if longest > args.max_num_tokens and not args.enable_chunked_prefill:
            raise InvalidRequest(
                f"a prompt has {longest} tokens, and this engine computes {args.max_num_tokens} in one step; "
                "raise max_num_tokens or set enable_chunked_prefill"
            )
        self._answers = queue.SimpleQueue()
        self._sampling = [
            sampling_params(workload, prompt.position, prompt.max_output_tokens, self.eos_ids) for prompt in prompts
        ]

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; running out of memory and a worker's death are named, and no request is left behind."""
        try:
            return work()
        except RuntimeError as error:
            if any(words in str(error) for words in MEMORY_WORDS):
                raise OutOfMemory(f"{doing}: {error}") from error
            raise
        except OSError:
            # A worker's pipe breaks a moment before the worker counts as ended.
            time.sleep(WATCH_S)
            self._require_alive()
            raise
        finally:
            if self._is_alive():
                for stream in list(self._streams):
                    self._loop.call_soon_threadsafe(stream.abort)
                wait(list(self._reading), timeout=ABORT_S)
            for future in list(self._reading):
                future.cancel()

    def drain(self) -> None:
        """Return when the engine has nothing left to compute.

        The LLM API cannot ask a device. But an engine works in order: once a request of one token that was sent last is
        answered, everything before it has been computed.

        Raises:
            RuntimeError: A worker died, or there is no answer in two minutes.
        """
        sampling = SamplingParams(max_tokens=1, end_id=-1, detokenize=False)
        answered = asyncio.run_coroutine_threadsafe(self._exhaust([0], sampling), self._loop)
        deadline_s = time.monotonic() + DRAIN_S
        while not wait([answered], timeout=WATCH_S).done:
            self._require_alive()
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"TensorRT-LLM did not answer a request of one token within {DRAIN_S:.0f} s")
        answered.result()

    async def _exhaust(self, ids: list[int], sampling: SamplingParams) -> None:
        async for _ in self.llm.generate_async(ids, sampling, streaming=True):
            pass

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Give the engine one request."""
        reading = asyncio.run_coroutine_threadsafe(self._read(request, prompt), self._loop)
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    async def _read(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Put each answer of one request, or what it failed by, into the queue."""
        stream = reason = last_id = None
        try:
            stream = self.llm.generate_async(prompt.ids, self._sampling[prompt.position], streaming=True)
            self._streams.add(stream)
            async for output in stream:
                completion, request.cached_prompt_tokens = output.outputs[0], output.cached_tokens
                if ids := list(completion.token_ids_diff):
                    last_id = ids[-1]
                    self._answers.put((request, self._instant(), ids, None))
                reason = completion.finish_reason or reason
            # Some samplers do not hand out the id that ended a sequence; it was generated all the same.
            hidden = self.eos_ids[:1] if reason == "stop" and last_id not in self.eos_ids else ()
            self._answers.put((request, self._instant(), hidden, reason if reason in REASONS else "abort"))
        except Exception as error:  # noqa: BLE001 - raised again by `step`, on the thread that serves the pass
            self._answers.put(error)
        finally:
            self._streams.discard(stream)

    def _instant(self) -> int:
        """Return one instant for all that the event loop does in one turn: the answers of one engine step."""
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

    def _is_alive(self) -> bool:
        watch = select.poll()
        for worker in self.workers:
            watch.register(worker, select.POLLIN)
        return not watch.poll(0)

    def _require_alive(self) -> None:
        """Raise if a worker has ended: TensorRT-LLM itself would wait for ever."""
        if not self._is_alive():
            raise RuntimeError("a process of TensorRT-LLM's engine died")

    def stop(self) -> None:
        """End the engine with its processes."""
        everything = descendants(os.getpid())
        # It waits for its workers without end, and one may have been killed.
        ending = threading.Thread(target=self.llm.shutdown, name="engine-shutdown", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_S if self._is_alive() else 0.0)
        if ending.is_alive():
            for pid in everything:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for worker in self.workers:
            os.close(worker)
        gc.collect()


def sampling_params(workload: Workload, position: int, limit: int, eos_ids: Sequence[int]) -> SamplingParams:
    """Return settings that leave nothing to a checkpoint's defaults; each prompt draws with a seed of its own.

    Without both `top_k` and `top_p` TensorRT-LLM is greedy at any temperature, so both are always given.
    """
    sampling = workload.sampling
    is_greedy = sampling.temperature == 0
    return SamplingParams(
        max_tokens=limit,
        temperature=None if is_greedy else sampling.temperature,
        top_k=1 if is_greedy else sampling.top_k or 0,
        top_p=None if is_greedy else 1.0 if sampling.top_p is None else sampling.top_p,
        seed=None if is_greedy else workload.seed + position,
        # One id ends a sequence by itself; others are stop words, whose ids would be cut off unless included.
        end_id=eos_ids[0] if eos_ids else -1,
        stop_token_ids=list(eos_ids[1:]) or None,
        include_stop_str_in_output=True,
        ignore_eos=workload.ignore_eos,
        detokenize=False,
    )


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text(encoding="ascii").split()):
                found += [child, *descendants(child)]
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""

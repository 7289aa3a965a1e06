"""A TensorRT-LLM engine: start it, read back what it runs with, receive its answers.

The engine works by itself. TensorRT-LLM hands responses to the event loop that made the request, so an event loop runs
on a thread for the life of the engine, and puts answers into a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import queue
import select
import shutil
import signal
import tempfile
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

# Read when it is imported and when MPI starts. No usage reports while measuring. MPI finds its own processes over
# loopback, the only network that a runner's container has, where a user without a name may be root.
os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMPI_MCA_oob_tcp_if_include", "lo")
os.environ.setdefault("OMPI_MCA_btl_tcp_if_include", "lo")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

import torch
from safetensors.torch import save_file
from tensorrt_llm import LLM, SamplingParams
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from wattdock_tensorrt import engine_arguments

from wattdock_runner import checkpoint
from wattdock_runner.arguments import json_ready
from wattdock_runner.backend import LoadedModel
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory, WrongState
from wattdock_runner.gpus import cuda_versions, parallelism, require_gpus, torch_gpus
from wattdock_runner.serving import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from wattdock_runner.backend import LoadOrder, Report, Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer

T = TypeVar("T")
# How soon a dead worker is noticed, and a cancelled pass ends.
WATCH_S = 0.1
DRAIN_S = 120.0
ABORT_S = 20.0
# Shorter than the ten seconds that a runner has to end.
SHUTDOWN_S = 8.0
REASONS = ("stop", "length")
# TensorRT-LLM has no exception class for these, and they come from another process as text.
MEMORY_WORDS = ("out of memory", "OutOfMemory", "insufficient memory", "Insufficient memory", "not enough memory")
# mpi4py runs this module in each worker that TensorRT-LLM starts.
WORKER_MODULE = b"mpi4py.futures"
# Raised for values that TensorRT-LLM does not take, or not together; pydantic's errors are ValueErrors.
REFUSALS = (AssertionError, NotImplementedError, OSError, TypeError, ValueError)
OTHER_NAMES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
NO_WORKERS = (
    "TensorRT-LLM's worker processes could not be told from others; one that is killed would show as a pass that hangs"
)


def load_engine(order: LoadOrder, report: Report) -> tuple[TensorrtEngine, LoadedModel]:
    """Start an engine with the model of `order` on the order's GPUs.

    Raises:
        WrongState: There is no GPU, or torch sees other GPUs than requested.
        InvalidRequest: TensorRT-LLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    try:
        config = checkpoint.read_from_folder(AutoConfig, order)
        model = checkpoint.meta_model(torch, AutoModelForCausalLM, config, trust_remote_code=order.trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot read {order.model_path}: {error}") from error
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    if not gpus:
        raise WrongState("TensorRT-LLM runs on NVIDIA GPUs only, and none was asked for; set gpus")
    settings = engine_settings(order, config)
    parameters = sum(int(parameter.numel()) for parameter in model.parameters())
    is_quantised = getattr(config, "quantization_config", None) is not None
    weight_bytes = None if is_quantised else parameters * int(getattr(torch, settings["dtype"]).itemsize)
    generation = checkpoint.read_generation_config(GenerationConfig, order, model)
    llm = _start(order, settings, model, report)
    text, tokenizer = config.get_text_config(), checkpoint.read_tokenizer(AutoTokenizer, order)
    engine = TensorrtEngine(llm, tokenizer, checkpoint.eos_token_ids(generation.eos_token_id), text)
    warnings = checkpoint.ignored_settings_warnings(generation.to_diff_dict())
    tensor, pipeline = llm.args.tensor_parallel_size, llm.args.pipeline_parallel_size
    used_gpu_uuids = tuple(gpu.uuid for gpu in gpus[: tensor * pipeline])
    # Workers do not say which layers they have where stages share them out.
    layers_by_gpu = dict.fromkeys(used_gpu_uuids, text.num_hidden_layers) if pipeline == 1 else {}
    return engine, LoadedModel(
        visible_gpus=gpus,
        used_gpu_uuids=used_gpu_uuids,
        effective_engine_args=effective_engine_args(llm.args)
        | {"dtype": settings["dtype"], "eos_token_ids": list(engine.eos_ids)},
        parallelism=parallelism(tensor, pipeline, layers_by_gpu),
        parameter_count=parameters,
        weight_bytes=weight_bytes,
        versions=cuda_versions(torch, gpus),
        warnings=warnings if engine.workers else (*warnings, NO_WORKERS),
    )


def engine_settings(order: LoadOrder, config: Any) -> dict[str, Any]:
    """Return all arguments of TensorRT-LLM's `LLM`."""
    engine_args: dict[str, Any] = dict(order.engine_args)
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or "bfloat16"
    return {
        "tensor_parallel_size": engine_args.pop("tp_size", 1),
        "pipeline_parallel_size": engine_args.pop("pp_size", 1),
        **engine_args,
        # A cached prompt is not computed: the energy per token would be that of another workload.
        "kv_cache_config": {"enable_block_reuse": False, **(engine_args.get("kv_cache_config") or {})},
        "model": str(order.model_path),
        "dtype": str(named).removeprefix("torch.") if order.dtype == "auto" else order.dtype,
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
    }


def _start(order: LoadOrder, settings: dict[str, Any], model: Any, report: Report) -> Any:
    try:
        with _weights(order, model, settings["dtype"], report) as folder:
            report("starting the engine")
            return LLM(**settings | {"model": str(folder)})
    except (MemoryError, *REFUSALS, RuntimeError) as error:
        _raise_named(error, str(order.model_path))


def _raise_named(error: Exception, model: str) -> NoReturn:
    """Raise what a caller can act on; the error of TensorRT-LLM that says so may be the cause of another error."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    text = "; ".join(map(str, causes))
    is_memory = any(isinstance(cause, (MemoryError, torch.OutOfMemoryError)) for cause in causes)
    if is_memory or any(words in text for words in MEMORY_WORDS):
        raise OutOfMemory(f"TensorRT-LLM: {text}") from error
    if isinstance(error, REFUSALS):
        raise InvalidRequest(f"TensorRT-LLM cannot load {model}: {text}") from error
    raise error


@contextmanager
def _weights(order: LoadOrder, model: Any, dtype: str, report: Report) -> Iterator[Path]:
    """Yield the folder that the engine reads: the model's, or a temporary folder of drawn weights.

    TensorRT-LLM's `load_format: dummy` draws from a range and a seed that no result could state.
    """
    if order.random_weights is None:
        yield order.model_path
        return
    report("drawing random weights")
    # The weights are too large for a container's small /tmp.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir())
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wattdock-drawn-", dir=cache) as name:
        folder = Path(name)
        for file in order.model_path.iterdir():
            if file.is_file() and file.suffix in (".json", ".model", ".py", ".txt"):
                shutil.copyfile(file, folder / file.name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # Older versions of transformers read the first name, newer versions the second.
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype, "dtype": dtype}))
        drawn = {}
        for parameter_name, parameter in model.named_parameters():
            drawn[parameter_name] = torch.empty(parameter.shape, dtype=getattr(torch, dtype))
            checkpoint.draw_uniform(torch, drawn[parameter_name], parameter_name, order.random_weights)
        save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
        yield folder


def effective_engine_args(args: Any) -> dict[str, Any]:
    """Return every engine argument as TensorRT-LLM holds it after its checks, JSON-ready.

    Workers do not report what they make of an argument without a value.
    """
    names = sorted(engine_arguments() or ())
    return {name: json_ready(getattr(args, OTHER_NAMES.get(name, name), None)) for name in names}


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
        """Refuse a prompt that is too long for a step of the engine, and make the settings of each prompt."""
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
        """Return `work()`; name a lack of memory, and end all requests."""
        try:
            return work()
        except RuntimeError as error:
            if any(words in str(error) for words in MEMORY_WORDS):
                raise OutOfMemory(f"{doing}: {error}") from error
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

        The LLM API cannot ask a device. But an engine works in order: once it has answered a request of a single token
        that was sent last, everything before has been computed.

        Raises:
            RuntimeError: A worker died, or the engine did not answer within two minutes.
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
        # TensorRT-LLM waits without end for workers that may have been killed.
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


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text(encoding="ascii").split()):
                pids += [child, *descendants(child)]
    return pids


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""

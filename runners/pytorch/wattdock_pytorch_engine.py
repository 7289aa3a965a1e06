"""A causal language model of transformers: read back what it runs with, generate in static batches."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar
from wattdock_pytorch_model import load_model
from wattdock_pytorch_ranks import exchange_named, join, leave, wait_for_all
from wattdock_pytorch_steps import StepClock, output_length, steps_of_batch

from wattdock_proto.context import model_context
from wattdock_runner import checkpoint
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import HOST_MEMORY, OutOfMemory, lacks_memory
from wattdock_runner.gpus import cuda_versions, require_gpus, torch_gpus
from wattdock_runner.linear import linear_facts, unpacked_warnings
from wattdock_runner.serving import Engine
from wattdock_runner.stop_strings import StopStrings
from wattdock_runner.values import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer
    from wattdock_runner.values import LoadOrder, Report, Workload

T = TypeVar("T")

DEFAULT_CPU_THREADS = torch.get_num_threads()


def load_engine(order: LoadOrder, report: Report) -> tuple[PyTorchEngine, LoadedModel]:
    """Load the model of `order` on the order's GPUs, or on the CPU without GPUs.

    Raises:
        WrongState: Torch sees other GPUs than requested.
        InvalidRequest: Transformers refuses the folder, the dtype or the attention implementation.
        OutOfMemory: The model does not fit.
        ExchangeFailed: The ranks cannot exchange data.
    """
    disable_progress_bar()
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    torch.set_num_threads(int(str(order.engine_args.get("cpu_threads", DEFAULT_CPU_THREADS))))
    torch.set_float32_matmul_precision(str(order.engine_args.get("float32_matmul_precision", "highest")))
    report("drawing random weights" if order.random_weights else "reading weights")
    if order.rank:
        join(order.rank, "cuda" if gpus else "cpu")
    with exchange_named("loading the model"):
        model = freeing_memory("loading the model", lambda: load_model(order, on_gpu=bool(gpus)))
    model.eval()
    # `generate` fills every field that is left open from the model's settings, so none may stay there.
    model.generation_config = GenerationConfig()
    report("reading the tokenizer")
    tokenizer = checkpoint.read_tokenizer(AutoTokenizer, order)
    ids = checkpoint.special_ids(order, model.config, tokenizer)
    engine = PyTorchEngine(model, tokenizer, ids, order.rank.count if order.rank else 1)
    # Only the engine's devices: a context on any other GPU takes memory that is not the model's.
    for device in engine.devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return engine, _describe(engine, order, gpus)


def _describe(engine: PyTorchEngine, order: LoadOrder, gpus: tuple[str, ...]) -> LoadedModel:
    model = engine.model
    parameters = list(model.parameters())
    used = sorted({parameter.device.index for parameter in parameters if parameter.device.type == "cuda"})
    split = {"kind": "tensor", "tensor_parallel_size": engine.ranks}
    if engine.ranks == 1:
        split = {"kind": "device_map" if len(used) > 1 else "none"}
    dtype = str(model.dtype).removeprefix("torch.")
    linear = linear_facts(model, dtype)
    # Accelerate never splits layers of these classes over devices.
    kinds, layers_by_gpu = set(model._no_split_modules or ()), Counter[str]()
    for module in model.modules():
        device = next((parameter.device for parameter in module.parameters()), None)
        if type(module).__name__ in kinds and device is not None and device.type == "cuda":
            layers_by_gpu[gpus[device.index]] += 1
    devices_by_name = getattr(model, "hf_device_map", None) or {"": str(parameters[0].device)}
    return LoadedModel(
        visible_gpu_uuids=gpus,
        used_gpu_uuids=tuple(gpus[index] for index in used),
        effective_engine_args={
            "dtype": dtype,
            **linear,
            "attn_implementation": model.config._attn_implementation,
            "device_map": {name: str(device) for name, device in devices_by_name.items()},
            "tp_plan": "auto" if order.rank else None,
            "tp_size": engine.ranks,
            "cpu_threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "eos_token_ids": list(engine.ids.eos),
            "pad_token_id": engine.ids.pad,
            "trust_remote_code": order.trust_remote_code,
        },
        parallelism=split | {"devices": dict(layers_by_gpu)},
        parameter_count=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        warnings=(*engine.ids.warnings, *unpacked_warnings(order, linear, "transformers")),
        **cuda_versions(torch, gpus),
    )


@dataclass(frozen=True)
class _Batch:
    """A call of `generate`; `output` holds prompts and new ids on the device, shape (sequences, ids).

    `stopped` holds how many new ids each sequence had that ended at a stop string, by its row.
    """

    requests: list[tuple[RequestRecord, int]]
    start_ns: int
    first_step: int
    prompt_width: int
    output: torch.Tensor
    stopped: dict[int, int]


class _Ends:
    """A stopping criterion for a batch whose sequences have different limits, or end at stop strings.

    Attributes:
        stopped: As in `_Batch`.
    """

    def __init__(self, limits: torch.Tensor, prompt_width: int, stop: StopStrings) -> None:
        self._limits, self._prompt_width, self._stop = limits, prompt_width, stop
        self.stopped: dict[int, int] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        is_over = input_ids.shape[1] - self._prompt_width >= self._limits
        for row, ids in enumerate(input_ids[:, self._prompt_width :].tolist() if self._stop.stops else ()):
            if row not in self.stopped and self._stop.end(ids):
                self.stopped[row] = len(ids)
            is_over[row] |= row in self.stopped
        return is_over


class PyTorchEngine(Engine):
    """A model on its devices. Tokens and their instants are read off the device once the pass is over.

    Attributes:
        devices: The devices that hold parameters; the first takes the inputs.
        ids: Ids that end a sequence, and that pad shorter prompts.
        ranks: Number of processes that hold the model together.
    """

    def __init__(self, model: Any, tokenizer: Any, ids: checkpoint.SpecialIds, ranks: int = 1) -> None:
        config = model.config.get_text_config()
        self.model, self.tokenizer, self.ids, self.ranks = model, tokenizer, ids, ranks
        self.vocab_size = config.vocab_size
        self.context_tokens = model_context(config.to_dict())
        self.devices = tuple(dict.fromkeys(parameter.device for parameter in model.parameters()))
        # The last id of a row is no input.
        self.most_scored = (self.context_tokens or 1 << 62) + 1
        # Layers that see a part of the context differ in how much they read.
        kinds = {*(getattr(config, "layer_types", None) or ())}
        self._reads_whole_context = not getattr(config, "sliding_window", None) and kinds <= {"full_attention"}
        self._next: list[tuple[RequestRecord, EncodedPrompt]] = []
        self._batches: list[_Batch] = []

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Make settings for each length of answer, and tie the device's clock to the host's."""
        self._settings = {
            limit: generation_config(self, workload, limit)
            for limit in {prompt.max_output_tokens for prompt in prompts}
        }
        self._ids = [torch.tensor(prompt.ids) for prompt in prompts]
        self._stop = StopStrings(self.tokenizer, workload.stop)
        self._ends = frozenset(() if workload.ignore_eos else self.ids.eos)
        self._next, self._batches = [], []
        torch.manual_seed(workload.seed)
        self._clock = StepClock(recorder, self.devices[0], torch.cuda)
        self.drain()
        self._clock.open()

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`, its forward passes marked, and running out of memory or a broken exchange named."""

        def marked() -> T:
            with torch.inference_mode(), self._clock.watching(self.model):
                return work()

        with exchange_named(doing):
            return freeing_memory(doing, marked)

    def drain(self) -> None:
        """Return when every device has done all its work."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        if self.ranks > 1:
            wait_for_all(self.devices[0])

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Put a request into the next batch."""
        request.cached_prompt_tokens = 0
        self._next.append((request, prompt))

    def step(self, until_ns: int | None) -> list[Answer]:  # noqa: ARG002
        """Generate for all requests of a batch, to the end."""
        batch, self._next, start_ns = self._next, [], now_ns()
        first_step, device = len(self._clock), self.devices[0]
        ids, mask = left_pad([self._ids[prompt.position] for _, prompt in batch], self.ids.pad, device)
        limits = [prompt.max_output_tokens for _, prompt in batch]
        # Padding after a sequence's limit is no token. Padding after an end of sequence counts until the pass is over.
        ordered = sorted(limits)
        self._clock.step_tokens = (len(ordered) - bisect_right(ordered, step) for step in count())
        width = ids.shape[1]
        ends = _Ends(torch.tensor(limits, device=device), width, self._stop)
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=self._settings[max(limits)],
            stopping_criteria=[ends] if len(set(limits)) > 1 or self._stop.stops else None,
        )
        requests = [(request, prompt.max_output_tokens) for request, prompt in batch]
        self._batches.append(_Batch(requests, start_ns, first_step, width, output, ends.stopped))
        # The finish reason shows in the ids, which stay on the device until the pass is over.
        return [(request, now_ns(), (), "length") for request, _ in batch]

    def score(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Compute a batch of rows in one forward pass; what pads a row stands behind all that counts in it."""

        def scores() -> list[tuple[float, bool]]:
            inputs = [torch.tensor(ids[:-1]) for ids, _ in rows]
            batch = pad_sequence(inputs, batch_first=True, padding_value=self.ids.pad).to(self.devices[0])
            logits, told = self.model(input_ids=batch, use_cache=False).logits, []
            for of_row, (ids, tokens) in zip(logits, rows, strict=True):
                chances = of_row[len(ids) - 1 - tokens : len(ids) - 1].float().log_softmax(-1)
                wanted = torch.tensor(ids[-tokens:], device=chances.device)
                likely = chances.gather(1, wanted[:, None]).sum()
                told.append((float(likely), bool((chances.argmax(-1) == wanted).all())))
            return told

        with torch.inference_mode():
            return freeing_memory(f"computing the likelihoods of {len(rows)} texts", scores)

    def complete(self, requests: Sequence[RequestRecord]) -> None:  # noqa: ARG002
        """Read the ids of each batch and the instants of its steps."""
        instants = self._clock.instants()
        for batch in self._batches:
            new_ids = batch.output[:, batch.prompt_width :].tolist()
            for row, ((request, limit), ids) in enumerate(zip(batch.requests, new_ids, strict=True)):
                stopped = batch.stopped.get(row, limit + 1)
                length = min(output_length(ids, self._ends, limit), stopped)
                request.steps = [(at_ns, 1) for at_ns in instants[batch.first_step : batch.first_step + length]]
                request.output_ids = ids[:length]
                request.finish_reason = "stop" if ids[length - 1] in self._ends or length == stopped else "length"
            sequences, width = batch.output.shape
            # By the device's clock, the batch before may have ended microseconds later than by the host's.
            start_ns = max(batch.start_ns, self.steps[-1].end_ns if self.steps else 0)
            self.steps.extend(
                steps_of_batch(
                    start_ns,
                    instants[batch.first_step : batch.first_step + width - batch.prompt_width],
                    prompt_tokens=sum(request.prompt_tokens or 0 for request, _ in batch.requests),
                    sequences=sequences,
                    context_tokens=batch.prompt_width if self._reads_whole_context else None,
                )
            )
        self._batches = []


def left_pad(prompts: list[torch.Tensor], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask on `device`, both int64 of shape (prompts, longest prompt), padded on the left."""
    if len({len(prompt) for prompt in prompts}) == 1:
        # Nothing to pad: the mask need not be made here and copied.
        ids = torch.stack(prompts).to(device)
        return ids, torch.ones_like(ids)
    ids = pad_sequence(prompts, batch_first=True, padding_value=pad_id, padding_side="left")
    mask = pad_sequence([torch.ones_like(prompt) for prompt in prompts], batch_first=True, padding_side="left")
    return ids.to(device), mask.to(device)


def generation_config(engine: PyTorchEngine, workload: Workload, max_new_tokens: int) -> GenerationConfig:
    """Return settings that leave nothing to a checkpoint's or the library's defaults."""
    sampling = workload.sampling
    is_sampled = sampling.temperature > 0
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # 0 switches it off; transformers' own default is 50.
        "top_k": sampling.top_k,
    }
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=is_sampled,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        disable_compile=True,
        eos_token_id=None if workload.ignore_eos or not engine.ids.eos else list(engine.ids.eos),
        pad_token_id=engine.ids.pad,
        **(settings if is_sampled else {}),
    )


def freeing_memory(what: str, work: Callable[[], T]) -> T:
    """Return `work()`; where memory runs out, free memory before the error is raised.

    Raises:
        OutOfMemory: Holds `what` and the allocator's message.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, (torch.OutOfMemoryError, MemoryError)) or lacks_memory(str(error))):
            raise
        reason = str(error) or "host memory is used up"
        cause = HOST_MEMORY if isinstance(error, MemoryError) else None
    # The exception keeps the frames that hold tensors alive until its handler is left.
    free_memory()
    raise OutOfMemory(f"out of memory while {what}: {reason}", cause)


def release() -> None:
    """Give memory back, and part from the other ranks."""
    free_memory()
    leave()


def free_memory() -> None:
    """Collect garbage and give cached device memory back."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

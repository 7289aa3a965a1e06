"""One loaded causal language model of transformers, as the common loop drives it: a step is one static batch."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from wattdock_pytorch_ranks import exchange_named, wait_for_all
from wattdock_pytorch_steps import StepClock, output_length

from wattdock_runner.clock import now_ns
from wattdock_runner.errors import OutOfMemory
from wattdock_runner.serving import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.backend import Workload
    from wattdock_runner.prompts import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer

T = TypeVar("T")


@dataclass(frozen=True)
class _Batch:
    """What one call of `generate` did; `output` holds prompts and new ids on the device, shape (sequences, ids)."""

    requests: list[tuple[RequestRecord, int]]
    first_step: int
    prompt_width: int
    output: torch.Tensor


class _OwnLimits:
    """A stopping criterion for a batch whose sequences have different limits."""

    def __init__(self, limits: torch.Tensor, prompt_width: int) -> None:
        self._limits = limits
        self._prompt_width = prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return input_ids.shape[1] - self._prompt_width >= self._limits


class PyTorchEngine(Engine):
    """A model on its devices. Tokens and their instants are read off the device once the pass is over.

    Attributes:
        devices: Those that hold parameters; the first takes the inputs.
        eos_ids: Ids that end a sequence, by the checkpoint's own word.
        pad_id: Fills up shorter prompts, always masked.
        ranks: How many processes hold the model together.
    """

    def __init__(self, model: Any, tokenizer: Any, eos_ids: tuple[int, ...], pad_id: int, ranks: int = 1) -> None:
        config = model.config.get_text_config()
        self.model, self.tokenizer, self.eos_ids, self.pad_id, self.ranks = model, tokenizer, eos_ids, pad_id, ranks
        self.vocab_size = config.vocab_size
        self.context_tokens = getattr(config, "max_position_embeddings", None)
        self.devices = tuple(dict.fromkeys(parameter.device for parameter in model.parameters()))
        self._next: list[tuple[RequestRecord, EncodedPrompt]] = []
        self._batches: list[_Batch] = []

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Make settings for each length of answer, and tie the device's clock to the host's."""
        self._settings = {
            limit: generation_config(self, workload, limit)
            for limit in {prompt.max_output_tokens for prompt in prompts}
        }
        self._ids = [torch.tensor(prompt.ids) for prompt in prompts]
        self._ends = frozenset(() if workload.ignore_eos else self.eos_ids)
        self._next, self._batches = [], []
        torch.manual_seed(workload.seed)
        self._clock = StepClock(recorder, self.devices[0])
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
        """Generate for all requests of one batch, to the end."""
        batch, self._next = self._next, []
        first_step, device = len(self._clock), self.devices[0]
        self._clock.sequences = len(batch)
        ids, mask = left_pad([self._ids[prompt.position] for _, prompt in batch], self.pad_id, device)
        limits = [prompt.max_output_tokens for _, prompt in batch]
        width = ids.shape[1]
        criteria = None if len(set(limits)) == 1 else [_OwnLimits(torch.tensor(limits, device=device), width)]
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=self._settings[max(limits)],
            stopping_criteria=criteria,
        )
        requests = [(request, prompt.max_output_tokens) for request, prompt in batch]
        self._batches.append(_Batch(requests, first_step, width, output))
        # Why each ended shows in its ids, which stay on the device until the pass is over.
        return [(request, now_ns(), (), "length") for request, _ in batch]

    def complete(self, requests: Sequence[RequestRecord]) -> None:  # noqa: ARG002
        """Read the ids of each batch and the instants of its steps."""
        instants = self._clock.instants()
        for batch in self._batches:
            new_ids = batch.output[:, batch.prompt_width :].tolist()
            for (request, limit), ids in zip(batch.requests, new_ids, strict=True):
                length = output_length(ids, self._ends, limit)
                request.steps = [(at_ns, 1) for at_ns in instants[batch.first_step : batch.first_step + length]]
                request.output_ids = ids[:length]
                request.finish_reason = "stop" if ids[length - 1] in self._ends else "length"
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
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        # 0 switches it off; transformers' own default is 50.
        "top_k": sampling.top_k or 0,
    }
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=is_sampled,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        disable_compile=True,
        eos_token_id=None if workload.ignore_eos or not engine.eos_ids else list(engine.eos_ids),
        pad_token_id=engine.pad_id,
        **(settings if is_sampled else {}),
    )


def freeing_memory(what: str, work: Callable[[], T]) -> T:
    """Return `work()`, with running out of memory named and what it held given back first.

    Raises:
        OutOfMemory: Says during what, and the allocator's own sentence.
    """
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = str(error) or "host memory is used up"
    except RuntimeError as error:
        # The CPU allocator has no exception class of its own.
        if "DefaultCPUAllocator" not in str(error):
            raise
        reason = str(error)
    # Only out here has the exception let go of the frames that hold tensors.
    free_memory()
    raise OutOfMemory(f"out of memory while {what}: {reason}")


def leave_out_of_collections() -> None:
    """Keep Python's garbage collector from looking at what is loaded, until memory is freed.

    A full collection of it takes tenths of a second, in whichever pass the recorder's objects happen to bring it about.
    vLLM does the same when its engine has started.
    """
    gc.collect()
    gc.freeze()


def free_memory() -> None:
    """Collect garbage and give cached device memory back."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""Run one pass of static batches through `generate` and record it.

Everything that is not inference happens before the span opens or after it closes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from wattdock_pytorch_load import PyTorchModel, freeing_memory
from wattdock_pytorch_ranks import RankTickets, exchange_named, wait_for_all
from wattdock_pytorch_steps import StepClock, output_length

from wattdock_runner.clock import now_ns
from wattdock_runner.supply import PromptSupply
from wattdock_runner.text import decode, encode_prompts, require_servable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.backend import Prompt, Workload
    from wattdock_runner.recorder import PassRecorder


@dataclass(frozen=True)
class _Request:
    """One prompt ready to run: token ids, shape (prompt tokens,), and the most it may generate."""

    ids: torch.Tensor
    limit: int


@dataclass(frozen=True)
class _Batch:
    """What one call of `generate` did; `output` holds prompts and new ids on the device, shape (sequences, ids)."""

    requests: list[tuple[int, _Request]]
    submitted_ns: int
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


def run_pass(loaded: PyTorchModel, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Run batches of `workload.in_flight` prompts until the minima are met; record every request and step.

    Raises:
        InvalidRequest: A prompt cannot be run by this model.
        OutOfMemory: A batch does not fit.
        ExchangeFailed: Ranks that hold the model together could not exchange data.
        PassCancelled: The client went away.
    """
    requests = _prepare(loaded, workload, prompts)
    clock = StepClock(recorder, loaded.devices[0])
    torch.manual_seed(workload.seed)
    if loaded.ranks > 1:
        workload = replace(workload, tickets=RankTickets(loaded.devices[0]))
    doing = f"generating with {workload.in_flight} in flight"
    with exchange_named(doing):
        batches = freeing_memory(doing, lambda: _run_batches(loaded, workload, requests, recorder, clock))
    instants = clock.instants()
    for batch in batches:
        _record(batch, loaded, workload, recorder, instants)


def _prepare(loaded: PyTorchModel, workload: Workload, prompts: Sequence[Prompt]) -> list[_Request]:
    """Tokenise, and refuse what would crash the device or leave the model's context."""
    encoded = encode_prompts(loaded.tokenizer, prompts, chat_template=workload.chat_template)
    limits = [workload.output_tokens_wanted(prompt) for prompt in prompts]
    config = loaded.model.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None)
    require_servable(encoded, limits, vocab_size=config.vocab_size, context_tokens=context)
    return [_Request(torch.tensor(ids), limit) for ids, limit in zip(encoded, limits, strict=True)]


def _run_batches(
    loaded: PyTorchModel, workload: Workload, requests: list[_Request], recorder: PassRecorder, clock: StepClock
) -> list[_Batch]:
    """Open the span, run, drain, close it."""
    settings = {limit: generation_config(loaded, workload, limit) for limit in {request.limit for request in requests}}
    batches: list[_Batch] = []
    with torch.inference_mode(), clock.watching(loaded.model):
        drain(loaded)
        clock.open()
        supply = PromptSupply(workload, requests, recorder.open())
        while chosen := supply.take(workload.in_flight):
            batches.append(_run_batch(loaded, settings, chosen, clock))
            finished = recorder.requests_finished + len(chosen)
            recorder.progress(output_tokens=recorder.tokens_so_far, requests_finished=finished)
        drain(loaded)
        recorder.close(drained=True)
    return batches


def _run_batch(
    loaded: PyTorchModel, settings: Mapping[int, GenerationConfig], chosen: list[tuple[int, _Request]], clock: StepClock
) -> _Batch:
    """Generate for one batch; `settings` holds those for each limit that a request may have."""
    submitted_ns, first_step = now_ns(), len(clock)
    clock.sequences = len(chosen)
    device = loaded.devices[0]
    ids, mask = left_pad([request.ids for _, request in chosen], loaded.pad_id, device)
    limits = [request.limit for _, request in chosen]
    width = ids.shape[1]
    criteria = None if len(set(limits)) == 1 else [_OwnLimits(torch.tensor(limits, device=device), width)]
    output = loaded.model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=settings[max(limits)],
        stopping_criteria=criteria,
    )
    return _Batch(chosen, submitted_ns, first_step, width, output)


def left_pad(prompts: list[torch.Tensor], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask on `device`, both int64 of shape (prompts, longest prompt), padded on the left."""
    if len({len(prompt) for prompt in prompts}) == 1:
        # Nothing to pad: the mask need not be made here and copied.
        ids = torch.stack(prompts).to(device)
        return ids, torch.ones_like(ids)
    ids = pad_sequence(prompts, batch_first=True, padding_value=pad_id, padding_side="left")
    mask = pad_sequence([torch.ones_like(prompt) for prompt in prompts], batch_first=True, padding_side="left")
    return ids.to(device), mask.to(device)


def generation_config(loaded: PyTorchModel, workload: Workload, max_new_tokens: int) -> GenerationConfig:
    """Return settings that leave nothing to a checkpoint's or the library's defaults."""
    sampling = workload.sampling
    is_sampled = sampling.temperature > 0
    chosen = {
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
        eos_token_id=None if workload.ignore_eos or not loaded.eos_ids else list(loaded.eos_ids),
        pad_token_id=loaded.pad_id,
        **(chosen if is_sampled else {}),
    )


def _record(
    batch: _Batch, loaded: PyTorchModel, workload: Workload, recorder: PassRecorder, instants: list[int]
) -> None:
    """Record a batch from its ids and the instants of its steps, both known only now."""
    eos_ids = frozenset(() if workload.ignore_eos else loaded.eos_ids)
    new_ids = batch.output[:, batch.prompt_width :].tolist()
    for (index, request), ids in zip(batch.requests, new_ids, strict=True):
        length = output_length(ids, eos_ids, request.limit)
        recorder.submitted(index, prompt_tokens=len(request.ids), cached_prompt_tokens=0, at_ns=batch.submitted_ns)
        for at_ns in instants[batch.first_step : batch.first_step + length]:
            recorder.emitted(index, 1, at_ns)
        recorder.finished(
            index,
            "stop" if ids[length - 1] in eos_ids else "length",
            text=decode(loaded.tokenizer, ids[:length]) if workload.return_text else None,
            output_ids=ids[:length] if workload.return_token_ids else None,
        )


def drain(loaded: PyTorchModel) -> None:
    """Return when every device has done all its work."""
    for device in loaded.devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if loaded.ranks > 1:
        wait_for_all(loaded.devices[0])

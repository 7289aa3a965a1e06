"""The model's arithmetic and memory traffic in the measured passes, beside what the GPUs can do. Pure.

Source: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from wattdock.analysis.joules import ratio
from wattdock.errors import UnknownArchitectureError
from wattdock.host import gpu_models
from wattdock.inputs.architecture import Architecture, architecture_of
from wattdock.values import Positive, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.energy import EnergyResult
    from wattdock.analysis.measured import Measured
    from wattdock.records import EnvironmentSnapshot, RequestRecord

# Engine argument with the bits that the loaded model's matrices are multiplied in; null where the kernels are unknown.
OPERANDS_BITS = "linear_operands_bits"
BITS = {"float32": 32, "float": 32, "bfloat16": 16, "float16": 16}
# Engine arguments (vLLM, SGLang) with the most tokens that a step guesses for a request.
GUESSED_TOKENS = ("spec_tokens", "speculative_num_draft_tokens")
NO_BITS = "the engine does not tell how wide the operands are that it multiplies"


Limit = Literal["arithmetic", "bandwidth"]


class Roofline(Stored):
    """The least time of the work of all passes on the GPUs used, and how far above it the passes lie.

    Attributes:
        nearest_limit: The one that takes longest.
        least_s: By each limit.
        time_ratio: Measured ÷ the longest of these.
    """

    nearest_limit: Limit
    least_s: Annotated[dict[Limit, Positive], Field(min_length=1)]
    time_ratio: Positive

    @classmethod
    def of(cls, operations: float, bytes_read: float, peak: gpu_models.Peak, *, duration_s: float) -> Roofline:
        """Return the least time of work, summed over the GPUs used.

        Args:
            operations, bytes_read: More than 0.
            peak: Peak of all GPUs together, for the operands of the arithmetic.
            duration_s: As measured.
        """
        least_s: dict[Limit, float] = {
            "arithmetic": operations / peak.flops_per_s,
            "bandwidth": bytes_read / peak.memory_bytes_per_s,
        }
        nearest = max(least_s, key=lambda limit: least_s[limit])
        return cls(nearest_limit=nearest, least_s=least_s, time_ratio=duration_s / least_s[nearest])

    @property
    def shares(self) -> dict[Limit, float]:
        """Least time by each limit ÷ measured time, the nearest limit first."""
        measured_s = self.time_ratio * self.least_s[self.nearest_limit]
        shares = {limit: least_s / measured_s for limit, least_s in self.least_s.items()}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))


class Compute(Stored):
    """Arithmetic of the measured passes, summed over the GPUs used; null with the reason where it is unknown.

    Attributes:
        model_flops: The model's useful arithmetic: from token counts, without padding or recomputation, which no engine
            reports.
        active_weights, total_weights: Matrix weights that an output token uses, and all; they differ with experts, and
            by an input embedding of its own.
        has_experts: Null in results of older versions.
        bytes_read_least: Weights at their mean size, once for every step; keys and values that each output token
            attends to.
        arithmetic_bits: Bits of an operand; null where that is not known.
        peak_flops_per_s, peak_memory_bytes_per_s: Of the GPUs used together: dense arithmetic of so many bits (of 32,
            the peak of 16), memory.
        peak_flops_share: `flops_per_s` ÷ the peak.
        peak_memory_share_least: Least share of the memory's peak rate that reading weights and caches took.
        hbm_j_per_byte_most: `energy.hbm_j` ÷ the least bytes of that reading, the memory's idle power included.
        roofline: Null where the peaks or the bytes are unknown.
    """

    model_flops: float | None = None
    method: str | None = None
    active_weights: int | None = None
    has_experts: bool | None = None
    total_weights: int | None = None
    bytes_read_least: float | None = None
    arithmetic_bits: int | None = None
    flops_per_s: float | None = None
    flops_per_j: float | None = None
    peak_flops_per_s: float | None = None
    peak_memory_bytes_per_s: float | None = None
    peak_source: str | None = None
    peak_reason: str | None = None
    peak_flops_share: float | None = None
    peak_memory_share_least: float | None = None
    hbm_j_per_byte_most: float | None = None
    roofline: Roofline | None = None
    reason: str | None = None


def compute(measured: Measured, environment: EnvironmentSnapshot, energy: EnergyResult) -> Compute:
    """Return the useful arithmetic of all passes over all GPUs used, and how it compares with what they can do."""
    architectures = [restart.architecture for restart in measured.restarts if restart.architecture]
    if not architectures or not measured.passes:
        return Compute(reason="no pass was measured" if architectures else "the model is not known")
    try:
        model = architecture_of(architectures[-1])
    except UnknownArchitectureError as error:
        return Compute(reason=str(error))
    requests = [request for run_pass in measured.pass_records for request in run_pass.requests]
    if any(request.prompt_tokens is None or request.output_tokens is None for request in requests):
        return Compute(reason="the engine does not tell every request's tokens")
    flops = sum(
        model.request_flops(
            prompt_tokens=request.prompt_tokens or 0,
            output_tokens=request.output_tokens or 0,
            cached_prompt_tokens=request.cached_prompt_tokens or 0,
        )
        for request in requests
    )
    duration_s = measured.passes_s
    bits, names = _operand_bits(model, environment), environment.gpu_names
    peak = gpu_models.peak_of(names, bits) if bits else None
    per_engine = measured.config.workload.batch_size // measured.config.section.replicas
    bytes_read = _least_bytes(model, requests, environment, in_flight=per_engine)
    roofline = Roofline.of(flops, bytes_read, peak, duration_s=duration_s) if peak and bytes_read and flops else None
    return Compute(
        model_flops=flops,
        method=model.FLOPS_METHOD,
        active_weights=model.active_weights,
        has_experts=any(layer.experts for layer in model.layers),
        total_weights=model.total_weights,
        bytes_read_least=bytes_read,
        arithmetic_bits=bits,
        flops_per_s=flops / duration_s,
        flops_per_j=ratio(flops, energy.total_j),
        peak_flops_per_s=peak.flops_per_s if peak else None,
        peak_memory_bytes_per_s=peak.memory_bytes_per_s if peak else None,
        peak_source=peak.source if peak else None,
        peak_reason=gpu_models.why_no_peak(names) if bits else NO_BITS,
        peak_flops_share=flops / duration_s / peak.flops_per_s if peak else None,
        peak_memory_share_least=roofline.least_s["bandwidth"] / duration_s if roofline else None,
        hbm_j_per_byte_most=ratio(energy.hbm_j, bytes_read),
        roofline=roofline,
    )


def _operand_bits(model: Architecture, environment: EnvironmentSnapshot) -> int | None:
    """Return the bits of what is multiplied, as the engine reports it; None where it does not."""
    arguments = environment.runner.engine_args
    if OPERANDS_BITS in arguments:
        bits = arguments[OPERANDS_BITS]
        return bits if isinstance(bits, int) and bits > 0 else None
    # The type of activations is that of weights only where these are not quantised.
    if arguments.get("quantization") or model.quantization or any("quant" in name for name in environment.model.files):
        return None
    return BITS.get(str(arguments.get("dtype")).removeprefix("torch."))


def _least_bytes(
    model: Architecture, requests: Sequence[RequestRecord], environment: EnvironmentSnapshot, *, in_flight: int
) -> float | None:
    """Return the least bytes read: all weights once for every step, and the keys and values of each token in it.

    A step gives each request in flight one token at most, and where it checks guessed tokens, those as well.
    """
    if not environment.runner.weight_bytes:
        return None
    arguments = environment.runner.engine_args
    guessed = (arguments.get(name) for name in GUESSED_TOKENS)
    tokens_per_step = 1 + max([0, *(number for number in guessed if isinstance(number, int))])
    cache_settings = arguments.get("kv_cache_config")
    in_settings = cache_settings.get("dtype") if isinstance(cache_settings, dict) else None
    cache_dtype = arguments.get("kv_cache_dtype") or in_settings
    if cache_dtype in (None, "", "auto"):
        # A cache has the type of the activations, as the engine or else config.json names it.
        cache_dtype = arguments.get("dtype") or model.dtype
    # Each step reads an expert once: the more tokens share it, the more experts, and the fewer bytes for each token.
    read = model.weights_read(in_flight * tokens_per_step)
    weights = read * environment.runner.weight_bytes / model.total_weights
    least = 0.0
    for request in requests:
        prompt, output = request.prompt_tokens or 0, request.output_tokens or 0
        cached = model.kv_bytes_read(prompt_tokens=prompt, output_tokens=output, dtype=str(cache_dtype))
        least += output / in_flight * weights + cached
    return least / tokens_per_step

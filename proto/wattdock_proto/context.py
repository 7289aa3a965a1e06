"""How many positions a model has: coordinator and runners read the answer from the same settings.

Needs the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Parts of a multimodal model's config that hold its language model, as transformers and models' own code name them.
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# Names of the positions. Source: `ModelArchConfigConvertorBase.derive_max_model_len_and_key` of vLLM 0.32, which takes
# the least of them, and Cohere's `model_max_length` before all others.
POSITIONS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
# Positions of kinds whose published config.json may leave them out. Source: configuration classes of transformers 5.24.
LEFT_OUT = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), 1024),
    **dict.fromkeys(("deepseek_v2", "falcon", "granite", "granitemoe", "llama", "mpt", "opt", "phi"), 2048),
    **dict.fromkeys(("deepseek_v3", "phi3"), 4096),
    **dict.fromkeys(("gemma", "gemma2"), 8192),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), 32_768),
    **dict.fromkeys(("gemma3_text", "gpt_oss", "mistral", "mixtral"), 131_072),
}
# Kinds without positions, to which vLLM 0.32 gives some all the same. Source: `_get_and_verify_max_len`.
UNBOUNDED, VLLM_POSITIONS = ("bloom", "falcon_mamba", "mamba", "mamba2"), 2048
# Kinds of rotary positions that reach `factor` times the trained positions; for llama3 and longrope, the config holds
# the whole reach.
STRETCHED = ("yarn", "linear", "dynamic")
# Names of LongRoPE. Source: `_patch_legacy_rope_type` of vLLM 0.32, which renames the first, Phi-3's.
LONGROPE = ("su", "longrope")
# Positions that the llama.cpp runner gives each request unless it is told otherwise.
SLOT_TOKENS = 4096
# More positions than any model has.
LARGEST = 10**9


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the settings of its language model at the top, whose values win."""
    whole = dict(config)
    for name in TEXT_PARTS:
        if isinstance(part := config.get(name), dict):
            whole |= text_config(part)
    return whole


def model_context(config: Mapping[str, Any], *, as_vllm: bool = False) -> int | None:
    """Return the positions that prompt and answer share; None where the config leaves them out.

    A window bounds what a position attends to, not how many positions there are. `model_max_length` of a tokenizer
    does not count either: vLLM takes it for pooling models alone, transformers only warns.

    Args:
        config: As config.json holds it, or as `to_dict` of a transformers config returns it.
        as_vllm: What vLLM allows unless `max_model_len` is set: YaRN's positions count as stretched already, those of
            longrope end at an `original_max_position_embeddings` beside them.

    Source: `_get_and_verify_max_len` of vLLM 0.32; `_compute_yarn_parameters` of transformers 5.24.
    """
    settings = text_config(config)
    kind = str(settings.get("model_type"))
    if _is_length(whole := settings.get("model_max_length")):
        positions = whole
    else:
        named = [length for name in POSITIONS if (length := settings.get(name)) is not None]
        left_out = VLLM_POSITIONS if as_vllm and kind in UNBOUNDED else LEFT_OUT.get(kind)
        positions = min(filter(_is_length, named), default=None) if named else left_out
    # Gemma 3 holds the whole reach, whatever its rotary positions are.
    if positions is None or "gemma3" in kind:
        return positions
    stretched = STRETCHED[1:] if as_vllm else STRETCHED
    original, reaches = settings.get("original_max_position_embeddings"), []
    # Each kind of layers may have a scaling of its own; the model reaches as far as all of them do.
    for rope in _rotary(settings):
        rope_type, factor = rope.get("rope_type", rope.get("type")), rope.get("factor") or 1
        trained = original or rope.get("original_max_position_embeddings")
        reach = positions
        if rope_type in stretched and isinstance(factor, int | float) and 1 <= factor <= LARGEST:
            reach = max(positions, int((trained if _is_length(trained) else positions) * factor))
        elif rope_type in LONGROPE and as_vllm and _is_length(original):
            reach = original
        reaches.append(reach)
    return min(reaches, default=positions)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _rotary(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scaling of rotary positions, of each kind of layers where kinds differ."""
    rope = settings.get("rope_scaling") or settings.get("rope_parameters")
    if isinstance(rope, dict):
        yield from [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]

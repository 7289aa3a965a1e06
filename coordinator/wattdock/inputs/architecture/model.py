"""What a decoder-only model is made of: weights, keys and values, and arithmetic. Pure.

Knows no config.json, no engine and no hardware. A multiplication and an addition count as two operations. Matrix
products and attention are counted; norms, activations, rotary embeddings and softmax are not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

# Bytes of one value, by the names that engines and config.json give types.
BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
BYTES |= dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1.0)
# Bytes of a value of an unknown type, for a lower bound: four bits are the fewest that engines offer.
LEAST_BYTES = 0.5
# Bytes of a value of a recurrent state, which engines keep in single precision; and the products with such a state that
# one position takes: what it holds for a key, its update, and the answer to a query.
STATE_BYTES, STATE_PRODUCTS = 4.0, 3


@dataclass(frozen=True)
class Layer:
    """One layer, in numbers of weights.

    Attributes:
        dense: Weights of matrices that every token is multiplied by: attention, a dense MLP, a router.
        other: Norms and biases.
        experts: Weights of all experts' matrices.
        active_experts: Weights of the experts that one token is routed to.
        window: Most tokens that its attention looks back; None is all.
        attends: Whether it keeps keys and values; a layer of linear attention has a state instead.
        state: Values of that state for each request, however long.
        tail: Values of each request's last positions that its convolution keeps.
    """

    dense: int
    other: int
    experts: int = 0
    active_experts: int = 0
    window: int | None = None
    attends: bool = True
    state: int = 0
    tail: int = 0

    def experts_read(self, tokens: float) -> float:
        """Return the weights of the distinct experts that so many tokens of one step are routed to, on average.

        Of E experts, k for each token: E × (1 − (1 − k/E)^tokens), where every expert is as likely as any other.
        """
        return self.experts * (1 - (1 - self.active_experts / self.experts) ** tokens) if self.experts else 0.0


@dataclass(frozen=True)
class Architecture:
    """A decoder-only model.

    Attributes:
        heads, kv_heads: Of attention; `kv_heads` equals `heads` for multi-head, is 1 for multi-query.
        key_size, value_size: Of one head.
        latent: Values per token and layer that stand for all heads' keys and values (multi-head latent attention); 0
            for none. The arithmetic is that of keys and values made from it once.
        mlp_width: What tensor parallelism has to divide in the MLP.
        mlp_values: Values per token alive at once in the widest MLP.
        embedding: Weights of the input embedding.
        head: Weights of the output projection; 0 where tied to the embedding.
        final: Weights before or after all layers: the last norm, a table of learned positions.
        positions: Of these, the table of learned positions.
        max_context: Positions that the model allows; None where config.json leaves it out.
        dtype: The checkpoint's own.
        quantization: The config's `quantization_config`; empty for none.
    """

    FLOPS_METHOD: ClassVar = (
        "2 × block weights × positions computed + 2 × lm_head × output tokens + 2 × layers × heads × "
        "(key size + value size) × (query, key) pairs; causal: a query meets itself and what came before it; "
        "in a layer with a window no more than that; 6 × values of a recurrent state × positions"
    )

    layers: tuple[Layer, ...]
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    mlp_width: int
    mlp_values: int
    embedding: int
    head: int
    final: int
    positions: int = 0
    latent: int = 0
    max_context: int | None = None
    dtype: str = "bfloat16"
    quantization: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def parameters(self) -> int:
        """All weights, tied weights counted once."""
        blocks = sum(layer.dense + layer.experts + layer.other for layer in self.layers)
        return blocks + self.embedding + self.head + self.final

    @property
    def active_weights(self) -> int:
        """Matrix weights that one output token meets, the output projection included, tied or not."""
        return self._active_block_weights + self.embedding

    @property
    def total_weights(self) -> int:
        """All matrix weights, the input embedding and learned positions included; norms and biases are not."""
        blocks = sum(layer.dense + layer.experts for layer in self.layers)
        return blocks + self.embedding + self.head + self.positions

    def weights_read(self, tokens: float) -> float:
        """Return the matrix weights that a decode step reads, the output projection included.

        Args:
            tokens: How many share the step; each expert is read once, however many tokens meet it.
        """
        return self.embedding + sum(layer.dense + layer.experts_read(tokens) for layer in self.layers)

    @property
    def _active_block_weights(self) -> int:
        return sum(layer.dense + layer.active_experts for layer in self.layers)

    def request_flops(self, *, prompt_tokens: int, output_tokens: int, cached_prompt_tokens: int = 0) -> int:
        """Return the operations that one request needs, over all GPUs together.

        The last output token is never fed back; the output projection is computed once per output token, not for the
        prompt's other positions; what a cache held is not computed.

        Args:
            prompt_tokens: Ids of the prompt, without padding.
            output_tokens: Ids generated, at least 1 (0 gives 0).
            cached_prompt_tokens: Tokens of the prompt, served from a cache; at least one position is always computed.

        Source: Kaplan et al., arXiv 2001.08361, section 2.1 (2 × weights per token), with attention counted exactly.
        """
        if output_tokens < 1:
            return 0
        cached = min(cached_prompt_tokens, prompt_tokens - 1)
        positions = prompt_tokens - cached + output_tokens - 1
        pairs = self._pairs(cached, prompt_tokens + output_tokens - 1)
        attention = 2 * self.heads * (self.key_size + self.value_size) * pairs
        attention += 2 * STATE_PRODUCTS * positions * sum(layer.state for layer in self.layers)
        return 2 * self._active_block_weights * positions + 2 * self.embedding * output_tokens + attention

    def kv_values(self, tensor: int = 1) -> int:
        """Return the values that one layer keeps of one token, on each GPU of a tensor-parallel group.

        A latent is not split: each GPU keeps it whole. transformers 5.24 and vLLM keep it, and no keys and values.
        """
        if self.latent:
            return self.latent
        # Beyond the number of key/value heads, each GPU has a repeated head.
        return ceil(self.kv_heads / tensor) * (self.key_size + self.value_size)

    def state_bytes(self, value_bytes: float) -> float:
        """Return the bytes that layers without keys and values keep of one request.

        Args:
            value_bytes: Of a value of keys and values.
        """
        return sum(layer.state * STATE_BYTES + layer.tail * value_bytes for layer in self.layers)

    def kv_bytes_read(self, *, prompt_tokens: int, output_tokens: int, dtype: str) -> float:
        """Return the bytes of keys and values that one request's decode steps must read, at least; over all GPUs.

        Each output token after the first reads, in every layer, the keys and values of every position it attends to,
        or the layer's state.

        Args:
            dtype: Type of keys and values, as the engine names it.
        """
        if output_tokens < 1:
            return 0.0
        positions = self._pairs(prompt_tokens, prompt_tokens + output_tokens - 1)
        value_bytes = BYTES.get(dtype.removeprefix("torch."), LEAST_BYTES)
        return positions * self.kv_values() * value_bytes + (output_tokens - 1) * self.state_bytes(value_bytes)

    def _pairs(self, start: int, end: int) -> int:
        """(query, key) pairs of these positions, each with itself and what came before it, within each layer's window.

        Those of the first n positions are 1 + 2 + … as far as the window reaches, then the window for each.
        """
        windows, pairs = Counter(layer.window for layer in self.layers if layer.attends), 0
        for window, layers in windows.items():
            for sign, positions in ((-1, start), (1, end)):
                growing = positions if window is None else min(positions, window)
                pairs += sign * layers * (growing * (growing + 1) // 2 + (positions - growing) * growing)
        return pairs

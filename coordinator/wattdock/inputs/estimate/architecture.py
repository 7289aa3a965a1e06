"""What of a model takes memory: its weights by how a split divides them, and the keys and values it keeps. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class UnknownArchitectureError(Exception):
    """This architecture is not known here; the message is the reason a result gives."""


@dataclass(frozen=True)
class Layer:
    """One layer: numbers of weights, and what its attention keeps per token.

    Attributes:
        met, unmet: Weights of matrices that each token is multiplied by, routers included, and of those of experts that
            it is not routed to. 0 where nobody counted that kind's arithmetic.
        attention: Weights that tensor parallelism divides: queries, output projection.
        key_value: Weights of keys and values; divided up to the number of key/value heads, repeated beyond.
        mlp: Weights of a dense MLP, or biases of experts; divided.
        experts: Matrices of experts, which may be quantised apart; divided.
        whole: Norms, routers, biases after a reduction: on every GPU.
        kv_values: Keys and values kept per token and layer, over all heads; 0 where nothing is kept per token.
        kv_repeated: How often transformers' code repeats each key/value head before it keeps it.
        kv_divides: Whether a split divides them by heads; a latent cache (MLA) is on every GPU.
        window: Tokens that its attention looks back at most; None is all.
    """

    attention: int
    key_value: int
    mlp: int
    whole: int
    met: int = 0
    unmet: int = 0
    experts: int = 0
    kv_values: int = 0
    kv_repeated: int = 1
    kv_divides: bool = True
    window: int | None = None

    @property
    def weights(self) -> int:
        """All of its weights."""
        return self.attention + self.key_value + self.mlp + self.experts + self.whole


@dataclass(frozen=True)
class Architecture:
    """A decoder-only model.

    Attributes:
        heads, kv_heads: Of attention; equal for plain multi-head attention, `kv_heads` 1 for multi-query.
        mlp_width: What tensor parallelism has to divide in the MLP.
        head_values: Values per token that attention's heads give together, over all GPUs of a split.
        mlp_values: Values per token alive at once in an MLP, over all GPUs of a split.
        branches: How many more copies of the hidden state there are, where attention and MLP run side by side.
        expert_values: Of these copies of the hidden state that routing makes, which no split divides.
        embedding: Weights of the input embedding.
        head: Weights of the output projection; 0 where tied to the embedding.
        final: Weights after or before all layers that lie whole on one GPU.
        positions: Of these, a table of learned positions.
        dtype: The checkpoint's own.
        quantization: How its checkpoint is quantised, or None.
    """

    layers: tuple[Layer, ...]
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    mlp_width: int
    head_values: int
    mlp_values: int
    embedding: int
    head: int
    final: int
    positions: int = 0
    branches: int = 0
    expert_values: int = 0
    max_context: int | None = None
    dtype: str = "bfloat16"
    quantization: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def parameters(self) -> int:
        """All weights, each tied one counted once."""
        return sum(layer.weights for layer in self.layers) + self.embedding + self.head + self.final

    @property
    def keeps_every_token(self) -> bool:
        """Whether all layers keep keys and values of every token, so that a cache has room for a number of tokens."""
        return all(layer.window is None and layer.kv_values for layer in self.layers)

    @property
    def attention_kinds(self) -> str:
        """Which attention its layers have, in the field's words."""
        kinds = Counter(self._kind(layer) for layer in self.layers)
        return (
            kinds.most_common(1)[0][0] if len(kinds) == 1 else ", ".join(f"{n} × {kind}" for kind, n in kinds.items())
        )

    def _kind(self, layer: Layer) -> str:
        if not layer.kv_values:
            return "no cache per token"
        if not layer.kv_divides:
            return "MLA"
        plain = "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"
        return f"{plain} over {layer.window} tokens" if layer.window else plain

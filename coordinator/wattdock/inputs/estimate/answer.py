"""What `wattdock estimate` answers: per GPU the smallest splits, and what one of them takes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wattdock.inputs.estimate.fit import MARGIN, smallest
from wattdock.inputs.estimate.splits import tensor_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import EngineMemory, Split
    from wattdock.inputs.estimate.estimate import Sized
    from wattdock.inputs.estimate.fit import Demand, Needs, Smallest, Verdict
    from wattdock.inputs.models.figures import ModelFigures

GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """A GPU to estimate for.

    Attributes:
        verified: Its memory was read in a source, or from the GPU itself.
    """

    name: str
    memory_bytes: int
    verified: bool = True


@dataclass(frozen=True)
class GpuAnswer:
    """One kind of GPU.

    Attributes:
        split: The one asked for, or the smallest tensor parallelism that holds the model; None where none does.
        needs: Of that split, on its fullest GPU.
        kv_room_tokens: Tokens of which keys and values then fit; None where layers keep different numbers of them.
    """

    gpu: Gpu
    smallest: tuple[Smallest, ...]
    split: Split | None
    needs: Needs | None
    verdict: Verdict
    kv_room_tokens: int | None


@dataclass(frozen=True)
class Answer:
    """Everything that is printed.

    Attributes:
        legal_tensor_sizes: Numbers of GPUs that tensor parallelism may have.
    """

    figures: ModelFigures
    sized: Sized
    engine: EngineMemory
    demand: Demand
    legal_tensor_sizes: list[int]
    gpus: tuple[GpuAnswer, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it JSON-ready, bytes as they are."""
        model = self.sized.model
        return {
            "model": self.figures.name,
            "source": self.figures.source,
            "verified": self.figures.verified,
            "note": self.figures.note,
            "parameters": model.parameters,
            "layers": len(model.layers),
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "attention": model.attention_kinds,
            "dtype": self.sized.dtype,
            "weights_bytes": self.sized.weights,
            "margin": MARGIN,
            "demand": asdict(self.demand),
            "engine": asdict(self.engine),
            "legal_tensor_sizes": self.legal_tensor_sizes,
            "gpus": [_gpu_json(one) for one in self.gpus],
        }


def _gpu_json(one: GpuAnswer) -> dict[str, Any]:
    return {
        "gpu": one.gpu.name,
        "memory_bytes": one.gpu.memory_bytes,
        "verified": one.gpu.verified,
        "smallest": {
            found.kind: {"gpus": found.split.gpus if found.split else None, "verdict": found.verdict}
            for found in one.smallest
        },
        "split": one.split.label if one.split else None,
        "verdict": one.verdict,
        "per_gpu": None if one.needs is None else asdict(one.needs) | {"total": one.needs.total},
        "kv_room_tokens": one.kv_room_tokens,
    }


def answer(
    figures: ModelFigures, sized: Sized, engine: EngineMemory, demand: Demand, gpus: Sequence[Gpu], split: Split | None
) -> Answer:
    """Return where a model fits.

    Args:
        split: The one to look at; None takes the smallest of each GPU.

    Raises:
        ConfigError: The model cannot be split so.
    """
    return Answer(
        figures=figures,
        sized=sized,
        engine=engine,
        demand=demand,
        legal_tensor_sizes=tensor_sizes(sized.model, repeats_kv_heads=engine.repeats_kv_heads),
        gpus=tuple(_gpu_answer(gpu, sized, engine, demand, split) for gpu in gpus),
    )


def _gpu_answer(gpu: Gpu, sized: Sized, engine: EngineMemory, demand: Demand, asked: Split | None) -> GpuAnswer:
    found = smallest(sized.model, engine, sized.size, demand, memory_bytes=gpu.memory_bytes)
    split = asked or found[0].split or found[1].split
    if split is None:
        return GpuAnswer(gpu, found, None, None, "cannot fit", None)
    needed = sized.needs(split, engine, demand)
    verdict = needed.verdict(gpu.memory_bytes, engine.share)
    room = needed.kv_room(gpu.memory_bytes, engine.share) / needed.kv_token if sized.model.keeps_every_token else None
    return GpuAnswer(gpu, found, split, needed, verdict, None if room is None else int(room))

"""Hold a model together with other processes, by transformers' plan for tensor parallelism, a device for each rank.

Every rank computes every step; before each batch the first rank decides for all.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from wattdock_runner.errors import ExchangeFailed, InvalidRequest
from wattdock_runner.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock_runner.values import Rank

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
# A rank may wait long for another that still reads weights; the coordinator's timeouts end a hang.
EXCHANGE_TIMEOUT = timedelta(hours=2)
# gloo has no exception class of its own.
EXCHANGE_WORDS = ("NCCL", "gloo")
# Largest share of a decoder's matrices that every rank may hold whole: routers and small projections of some plans.
WHOLE_SHARE = 0.1


def join(rank: Rank, kind: str) -> torch.device:
    """Meet the other ranks, and return the device of this rank.

    Args:
        kind: "cuda" or "cpu".

    Raises:
        ExchangeFailed: The ranks did not come together.
    """
    # Transformers takes a rank's device from this.
    os.environ["LOCAL_RANK"] = str(rank.index)
    device = torch.device(kind, rank.index) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    with exchange_named("meeting the other ranks"):
        distributed.init_process_group(
            BACKENDS[kind],
            store=distributed.FileStore(rank.meeting, rank.count),
            rank=rank.index,
            world_size=rank.count,
            timeout=EXCHANGE_TIMEOUT,
            device_id=device if kind == "cuda" else None,
        )
    return device


def leave() -> None:
    """Part from the other ranks; harmless without any."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def wait_for_all(device: torch.device) -> None:
    """Return when every rank has come this far."""
    distributed.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def distributed_config(rank: Rank) -> Any:
    """Return what tells transformers to split a model by its own plan."""
    # Here, for a transformers that lacks it can still load whole models.
    from transformers.distributed.configuration_utils import DistributedConfig

    return DistributedConfig(tp_size=rank.count, tp_plan="auto")


def split_empty(model: Any, rank: Rank) -> Any:
    """Split a model whose parameters are on the meta device and not tied yet, as `from_pretrained` would."""
    kind = type(model)
    prepared = kind.prepare_distribute_model(distributed_config(rank))
    model = kind.maybe_distribute_model(model, prepared[0], prepared[2])
    model.tie_weights()
    return model


def is_split(parameter: Any) -> bool:
    """Whether this rank holds only a part of a parameter."""
    return hasattr(parameter, "placements")


def local_part(values: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this rank's part of a whole tensor, split as `like` is; the whole tensor may be freed."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    part = distribute_tensor(values, like.device_mesh, like.placements, src_data_rank=None).to_local()
    return DTensor.from_local(
        part.clone(), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def require_splittable(config: Any, count: int) -> None:
    """Accept a number of ranks that divides attention heads and KV heads.

    Raises:
        InvalidRequest: Holds the heads and the possible numbers of ranks.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    if not heads or not kv_heads or not (heads % count or kv_heads % count):
        return
    legal = [str(size) for size in range(1, kv_heads + 1) if not heads % size and not kv_heads % size]
    raise InvalidRequest(
        f"{heads} attention heads and {kv_heads} KV heads cannot be shared out among {count} ranks; "
        f"possible: {', '.join(legal)}"
    )


def require_split(model: Any, count: int) -> None:
    """Accept a model that transformers' plan has really split.

    A plan may name few layers, or the output head alone: every rank would then compute the whole decoder.

    Raises:
        InvalidRequest: Holds the share that every rank has whole, and other ways to split the model.
    """
    share = whole_share(model)
    if share <= WHOLE_SHARE:
        return
    kind = model.config.get_text_config().model_type
    raise InvalidRequest(
        f"tp_plan: auto cannot split {kind}: by the plan of this version of transformers each of {count} ranks holds "
        f"{share:.0%} of the decoder's matrices whole and computes them; use device_map: auto or backend: vllm"
    )


def whole_share(model: Any) -> float:
    """Return the share, by bytes, of the decoder's matrices that this rank holds whole.

    Embeddings do not count, nor do encoders of other inputs than text, which no pass uses.
    """
    head = model.get_output_embeddings()
    layers = (layer for layer in model.get_decoder().modules() if layer is not head)
    parameters = (
        parameter
        for layer in layers
        if not isinstance(layer, torch.nn.Embedding)
        for parameter in layer.parameters(recurse=False)
    )
    matrices = {id(parameter): parameter for parameter in parameters if parameter.dim() > 1}.values()
    total_bytes = whole_bytes = 0
    for matrix in matrices:
        size_bytes = matrix.numel() * matrix.element_size()
        total_bytes += size_bytes
        # A plan may "split" a matrix by giving every rank all of it.
        if not is_split(matrix) or matrix.to_local().numel() == matrix.numel():
            whole_bytes += size_bytes
    return whole_bytes / total_bytes if total_bytes else 0.0


class RankTickets(Tickets):
    """Tickets of a pass that all ranks serve together: the first rank decides, the others follow.

    Args:
        device: The device that exchanges the decision.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers, the same on every rank."""
        decided = torch.tensor([wanted(self.taken)], device=self._device)
        distributed.broadcast(decided, src=0)
        return super().take(lambda _: int(decided.item()))


@contextmanager
def exchange_named(what: str) -> Iterator[None]:
    """Name an error of the context that comes from ranks or GPUs that could not exchange data.

    Raises:
        ExchangeFailed: Holds `what` and the library's message.
    """
    try:
        yield
    except RuntimeError as error:
        is_named = isinstance(error, distributed.DistError) or any(word in str(error) for word in EXCHANGE_WORDS)
        if not is_named or isinstance(error, torch.OutOfMemoryError):
            raise
        raise ExchangeFailed(f"the ranks could not exchange data while {what}: {error}") from error

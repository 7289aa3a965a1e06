"""Wait until an engine has done all its work on the devices, with what the LLM API offers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tensorrt_llm import SamplingParams
from wattdock_tensorrt_workers import Process, is_alive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock_tensorrt_api import Llm, RequestOutput

# How soon a dead worker is seen.
WATCH_S = 0.1
DRAIN_S = 120.0


async def drain(llm: Llm, workers: Iterable[Process]) -> None:
    """Return when the engine has nothing left to compute.

    The LLM API cannot ask a device. But an engine works in order: once a request of one token that was sent last is
    answered, everything before it has been computed, a step that was begun too much included.

    Raises:
        RuntimeError: A worker died, or there is no answer in two minutes.
    """
    params = SamplingParams(max_tokens=1, end_id=-1, detokenize=False)
    answered = asyncio.ensure_future(_exhaust(llm.generate_async([0], params, streaming=True)))
    try:
        for _ in range(round(DRAIN_S / WATCH_S)):
            if (await asyncio.wait({answered}, timeout=WATCH_S))[0]:
                return answered.result()
            require_alive(workers)
    finally:
        answered.cancel()
    raise RuntimeError(f"TensorRT-LLM did not answer a request of one token within {DRAIN_S:.0f} s")


def require_alive(workers: Iterable[Process]) -> None:
    """Raise if a worker has ended; requests would wait for ever."""
    if not all(map(is_alive, workers)):
        raise RuntimeError("a process of TensorRT-LLM's engine died")


async def _exhaust(output: RequestOutput) -> None:
    async for _ in output:
        pass

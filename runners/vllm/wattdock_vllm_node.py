"""The part of a vLLM engine that another node than the head holds: workers that the head's engine drives.

Source: `run_headless` in vllm/entrypoints/cli/serve.py of vLLM 0.32.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from wattdock_vllm_engine import release
from wattdock_vllm_load import plan_load, refusal
from wattdock_vllm_processes import ChildFaults, close_sockets, fault_of, open_sockets

from wattdock_runner.errors import WrongState
from wattdock_runner.gpus import cuda_versions
from wattdock_runner.serving import Engine
from wattdock_runner.values import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import LoadOrder, Report, Workload

__all__ = ["load_engine", "release"]


def load_engine(order: LoadOrder, report: Report) -> tuple[NodePart, LoadedModel]:
    """Start this node's workers; return once they have met the head's.

    Raises:
        WrongState, InvalidRequest, OutOfMemory: As `wattdock_vllm_engine.load_engine`.
    """
    plan, faults = plan_load(order, report), ChildFaults()
    try:
        config = AsyncEngineArgs(**plan.settings).create_engine_config(headless=True)
        executor = MultiprocExecutor(config, monitor_workers=False)
    except Exception as error:
        close_sockets(open_sockets())
        raise refusal(faults.cause() or fault_of(error), plan.settings, error) from error
    loaded = LoadedModel(
        visible_gpu_uuids=plan.gpus,
        # Every GPU that this node gives holds a part: one worker for each.
        used_gpu_uuids=plan.gpus,
        effective_engine_args={},
        parallelism={},
        parameter_count=plan.parameters,
        weight_bytes=None,
        warnings=(),
        **cuda_versions(torch, plan.gpus),
    )
    return NodePart(executor), loaded


class NodePart(Engine):
    """Workers that take their steps from the head; when one of them ends, so does this runner."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        threading.Thread(target=self._watch, name="workers-end", daemon=True).start()

    def _watch(self) -> None:
        self._executor.start_worker_monitor(inline=True)
        if self._executor.is_failed:
            # The head cannot go on without them; the keeper ends the rest.
            os._exit(1)

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:  # noqa: ARG002
        """Refuse a pass: the head's runner serves it.

        Raises:
            WrongState: Always.
        """
        raise WrongState("passes are asked of the head's runner")

    def drain(self) -> None:
        """Return at once: the head's engine drains all workers."""

    def end(self) -> None:
        """End this node's workers."""
        self._executor.shutdown()

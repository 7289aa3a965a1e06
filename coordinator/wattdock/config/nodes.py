"""Over which nodes a model is spread, and how many GPUs it takes of each: the settings `nodes` and `gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from wattdock.config.lengths import Positive, StrictSettings
from wattdock.config.sections import BackendSection

__all__ = ["GpuCount", "NodesSpec"]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+:\d{1,5}$")]


class GpuCount(StrictSettings):
    """`gpus: {count: N}`; each with at least `min_free_gb` (1e9 bytes) of VRAM free."""

    count: Positive
    min_free_gb: PositiveFloat | None = None

    def __str__(self) -> str:
        return str(self.model_dump(exclude_none=True)).replace("'", "")


class NodesSpec(StrictSettings):
    """The nodes that hold a model beside this one, which is the head; each runs `wattdock agent`.

    Attributes:
        agents: Addresses of the agents, "host:port"; the section's GPUs are spread over head and agents alike.
        pairing: The file that `wattdock pair` made.
        address: The head's address for the engine's own traffic; None is the one on the way to the first agent.
        clock_limit_j: Most joules by which an end of a span may be off, at the 95 % level, for a step of a GPU's whole
            power limit, because a node's clock is not known better; a slower link is refused.
    """

    agents: Annotated[list[Address], Field(min_length=1, max_length=64)]
    pairing: Annotated[Path, Field(strict=False)]
    address: str | None = None
    clock_limit_j: PositiveFloat = 5.0

    @property
    def count(self) -> int:
        """Number of nodes, the head included."""
        return 1 + len(self.agents)

    def why_not(self, config: Any) -> str | None:
        """Return why an experiment, an `ExperimentConfig`, cannot be spread over these nodes; None where it can."""
        section, needed = config.section, config.section.gpus_needed()
        # Of a backend without a section, only its runner knows.
        if type(section) is not BackendSection and not section.spans_nodes:
            return f"{config.backend} cannot spread a model over nodes; vllm can"
        if needed % self.count and not isinstance(config.gpus, GpuCount):
            return f"{needed} GPUs cannot be shared out over {self.count} nodes"
        single = {
            "speculative_config.model": config.draft,
            "data_parallel_size": section.replicas > 1,
            f"launcher: {config.launcher}": config.launcher in ("docker", "apptainer"),
            "container.locked (--locked)": config.container.locked and config.launcher != "process",
            "gpus: [...]": isinstance(config.gpus, list),
        }
        wrong = next((name for name, is_set in single.items() if is_set), None)
        return wrong and f"they and {wrong} exclude each other"

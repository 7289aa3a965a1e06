"""Over which nodes a model is spread, and how many GPUs it takes of each: the settings `nodes` and `gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from wattdock.config.lengths import Positive, StrictSettings
from wattdock.config.sections import BackendSection
from wattdock.text import pluralize

__all__ = ["GpuCount", "Gpus", "NodesSpec"]
MOST_NODES = 65
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+:\d{1,5}$")]


class GpuCount(StrictSettings):
    """`gpus: {count: N}`; each with at least `min_free_gb` (1e9 bytes) of VRAM free."""

    count: Positive
    min_free_gb: PositiveFloat | None = None

    def __str__(self) -> str:
        return str(self.model_dump(exclude_none=True)).replace("'", "")


def _in_a_form_of_gpus(value: Any) -> Any:
    if isinstance(value, int | float | None) or (isinstance(value, str) and value != "auto"):
        raise ValueError(f"write auto, a list of indices or UUIDs, or {{count: N}}, not {value!r}")
    for name in value if isinstance(value, list) else ():
        if not isinstance(name, str) and (type(name) is not int or name < 0):
            raise ValueError(f"{name!r} is no GPU; name GPUs by index or UUID, as `wattdock gpus` lists them")
    return value


Gpus = Annotated[
    Literal["auto"] | list[Annotated[int, Field(ge=0)] | str] | GpuCount, BeforeValidator(_in_a_form_of_gpus)
]


class NodesSpec(StrictSettings):
    """The nodes that hold a model: this one, which is the head, and others, on each of which an agent runs.

    `nodes: N` is a Slurm job of N nodes, on which the head starts the agents itself; else `agents` run already.

    Attributes:
        count: Number of nodes, the head included; the section's GPUs are spread over all alike.
        agents: Addresses of agents that were started by hand, "host:port".
        pairing: The file that `wattdock pair` made, where there are `agents`.
        address: The head's address for the engine's own traffic; None is the one on the way to the first agent.
        clock_limit_j: Most joules by which an end of a span may be off, at the 95 % level, for a step of a GPU's whole
            power limit, because a node's clock is not known better; a slower link is refused.
    """

    count: Annotated[int, Field(ge=2, le=MOST_NODES)]
    agents: list[Address] = Field(default_factory=list)
    pairing: Annotated[Path, Field(strict=False)] | None = None
    address: str | None = None
    clock_limit_j: PositiveFloat = 5.0

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        if isinstance(value, int):
            return {"count": value}
        agents = value.get("agents") if isinstance(value, dict) else None
        return {"count": 1 + len(agents), **value} if isinstance(agents, list) else value

    @model_validator(mode="after")
    def _agents_are_all_other_nodes(self) -> Self:
        if self.agents and self.count != 1 + len(self.agents):
            raise ValueError(f"count: {self.count}, and {len(self.agents)} agents beside the head; leave count out")
        if bool(self.agents) != bool(self.pairing):
            raise ValueError("agents and pairing belong together; without both a Slurm job's nodes are taken")
        return self

    def why_not(self, config: Any) -> str | None:
        """Return why an experiment, an `ExperimentConfig`, cannot be spread over these nodes; None where it can."""
        section, needed = config.section, config.section.gpus_needed()
        # Of a backend without a section, only its runner knows.
        if type(section) is not BackendSection and not section.spans_nodes:
            return f"{config.backend} cannot spread a model over nodes; vllm can"
        if needed % self.count and not isinstance(config.gpus, GpuCount):
            return f"{pluralize(needed, 'GPU')} cannot be shared out over {self.count} nodes"
        single = {
            "speculative_config.model": config.draft,
            "data_parallel_size": section.replicas > 1,
            f"launcher: {config.launcher}": config.launcher in ("docker", "apptainer"),
            "container.locked (--locked)": config.container.locked and config.launcher != "process",
            "gpus: [...]": isinstance(config.gpus, list),
        }
        wrong = next((name for name, is_set in single.items() if is_set), None)
        return wrong and f"they and {wrong} exclude each other"

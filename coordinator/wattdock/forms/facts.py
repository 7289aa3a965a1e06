"""What every form is written from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.errors import ConfigError
from wattdock.text import significant, singular

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult
    from wattdock.forms.rungs import Ladder
    from wattdock.records import EnvironmentSnapshot


class Facts(NamedTuple):
    """A result with joules per unit of work, its parts, none of which is null, and its ladder."""

    result: ExperimentResult
    budget: Any
    energy: Any
    environment: EnvironmentSnapshot
    performance: Any
    rungs: Ladder

    @classmethod
    def of(cls, result: ExperimentResult, rungs: Ladder) -> Facts:
        """Return the facts of a result.

        Raises:
            ConfigError: No joules per unit of work were measured.
        """
        budget, energy, environment, done = result.budget, result.energy, result.environment, result.performance
        if not (budget and energy and energy.total_j and environment and done):
            raise rungs.no_joules or ConfigError(f"{rungs.label}: its speed or machine is not stored")
        return cls(result, budget, energy, environment, done, rungs)

    @property
    def hardware(self) -> str:
        """The GPUs used, as in "2 × NVIDIA H200"."""
        return f"{self.environment.gpu_count} × {', '.join(dict.fromkeys(self.environment.gpu_names))}"

    @property
    def precision(self) -> str | None:
        """What the engine calls the type of its weights."""
        arguments = self.environment.runner.engine_args
        return arguments.get("quantization") or arguments.get("dtype")

    @property
    def counted(self) -> tuple[float, float, str]:
        """Joules and seconds of the work that is counted, and where that is: whole passes, a command's spans."""
        if self.result.config.command is None or not self.result.work or not self.energy.mean_power_w:
            headline = self.energy.windows.headline.replace("_", " ") if self.energy.windows else "unknown"
            where = f"whole passes; the figure per unit is of the declared work, by the window: {headline}"
            return self.energy.total_j, self.performance.duration_s, where
        joules = self.budget.measured * self.result.work.count
        return joules, joules / self.energy.mean_power_w, "the work that counts; the figure per unit is corrected"

    @property
    def sizes(self) -> tuple[float, float, bool]:
        """Mean tokens of prompts and of answers, 0 where unknown, and whether these are of the declared work."""
        done, mixes = self.performance, self.result.procedure.mix if self.result.procedure else []
        sent, (into, out) = (done.prompt_tokens or 0) / done.requests, self.result.request_tokens
        if out and mixes and all(mix.declared_answer_tokens and not mix.ended_early + mix.aborted for mix in mixes):
            return into or sent, out, True
        # A staggered start shortens answers by an unknown part where these end early or have no declared length.
        return sent, 0 if self.result.config.workload.staggered_start else done.output_tokens / done.requests, False

    @property
    def answer_tokens(self) -> float:
        """Mean output tokens of requests that no staggered start shortened, as the figure's are.

        Raises:
            ConfigError: They are unknown.
        """
        if not (out := self.sizes[1]):
            why = "answers ended early, or have no declared length, and staggered_start shortened some"
            remedy = "measure without staggered_start, or, if an older wattdock measured, write the form with --again"
            raise ConfigError(f"{self.rungs.label}: no tokens per request: {why}", remedy)
        return out

    @property
    def figure(self) -> str:
        """Joules per unit of the declared work with the 95 % interval, or why there is none, and requests' sizes."""
        interval = f" {self.budget.interval} (95 %)" if self.budget.interval else f" ({self.budget.reason})"
        figure = f"{significant(self.budget.energy_per_unit_j)} J per {singular(self.rungs.work)}{interval}"
        if self.result.config.command:
            return figure
        work, (into, out, declared) = self.result.config.workload, self.sizes
        of = "the declared work, requests" if declared else "requests"
        ratio = f", {into / out:,.1f} in for each out" if declared and into else ""
        parts = [f"{tokens:,.5g} {way}" for tokens, way in ((into, "tokens in"), (out, "out")) if tokens]
        pace = f"{work.batch_size} in flight" if work.arrival in ("single", "batch", "closed") else work.arrival
        of += f" of {' and '.join(parts)} on average{ratio}" if parts else ""
        return f"{figure}; {of} ({self.environment.dataset}), {pace}"

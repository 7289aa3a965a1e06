"""What every form is written from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.errors import ConfigError
from wattdock.text import singular

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
    def answer_tokens(self) -> float:
        """Mean output tokens of requests that no staggered start shortened, as the figure's are.

        Of n requests in flight, such a start leaves the first n of a pass 1/n to n/n of their answers: (n + 1) ÷ 2n.

        Raises:
            ConfigError: Answers ended before their limits, which a staggered start shortened by an unknown part.
        """
        done, work, passes = self.performance, self.result.config.workload, len(self.energy.passes)
        if not work.staggered_start:
            return float(done.output_tokens / done.requests)
        mixes = self.result.procedure.mix if self.result.procedure else []
        if any(mix.ended_early or mix.aborted for mix in mixes):
            why = "answers ended early, and how far staggered_start shortened them is unknown"
            raise ConfigError(f"{self.rungs.label}: no tokens per request: {why}", "measure without staggered_start")
        first = min(work.batch_size, done.requests / passes)
        whole = done.requests - passes * first * (1 - 1 / work.batch_size) / 2
        # Shortened answers are whole tokens, too.
        return round(float(done.output_tokens / whole), 2)

    @property
    def figure(self) -> str:
        """Joules per unit of work with the 95 % interval, or why there is none, and of requests their mean sizes."""
        interval = f" {self.budget.interval:.4g} (95 %)" if self.budget.interval else f" ({self.budget.reason})"
        figure = f"{self.budget.energy_per_unit_j:.4g} J per {singular(self.rungs.work)}{interval}"
        if self.result.config.command:
            return figure
        done, work = self.performance, self.result.config.workload
        sizes = [f"{done.output_tokens / done.requests:,.5g} out"]
        if done.prompt_tokens:
            sizes.insert(0, f"{done.prompt_tokens / done.requests:,.5g} tokens in")
        pace = f"{work.batch_size} in flight" if work.arrival in ("single", "batch", "closed") else work.arrival
        return f"{figure}; requests of {' and '.join(sizes)} on average ({self.environment.dataset}), {pace}"

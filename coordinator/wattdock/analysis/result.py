"""ExperimentResult: an experiment's figures, from the records of its restarts. Pure.

Names carry units. Not measured is null, with a reason beside it, never 0.
"""

from __future__ import annotations

from datetime import UTC, datetime
from operator import mul
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from wattdock.analysis.blocks import measured_budget
from wattdock.analysis.budget import Budget
from wattdock.analysis.compute import Compute, compute
from wattdock.analysis.conditions import ABSENT, differing, everything, required_conditions
from wattdock.analysis.energy import (
    BOUNDARY_STATEMENTS,
    NET_MEANING,
    EnergyResult,
    MultiGPUMetrics,
    measured_energy,
    multi_gpu,
)
from wattdock.analysis.goodput import Goodput, goodput
from wattdock.analysis.gpus import GpuResult, gpu_results
from wattdock.analysis.measured import Measured
from wattdock.analysis.performance import Performance, performance
from wattdock.analysis.procedure import Procedure, procedure
from wattdock.analysis.quality import Quality, quality
from wattdock.analysis.statistics import ENERGY, RATIOS, SPEED, Figure, Restarts, by_restart
from wattdock.analysis.verdict import Audit
from wattdock.analysis.work import Work, work
from wattdock.config import ExperimentConfig
from wattdock.inputs import PromptSet
from wattdock.metering import Span
from wattdock.records import EnvironmentSnapshot, Failure, RestartRecord, snapshot
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence


class StoredSpan(Stored):
    """A named interval on a monotonic clock of the host; `pass` is null outside the measured passes.

    Attributes:
        clock: Index of its instants' clock in `environment.clock.identities`.
    """

    name: str
    restart: int
    pass_index: int | None = Field(default=None, alias="pass")
    start_ns: int
    end_ns: int
    clock: int
    energy_j: float | None = None
    timing_j: float | None = None
    reason: str | None = None


class StudyFacts(Stored):
    """The study that an experiment was measured in.

    Attributes:
        study_id: Name of its folder under `studies/`.
        attempt: 1 for the first result that the study stored of this experiment; a later one replaces the earlier.
    """

    study_id: str
    attempt: int


def _instant(text: str) -> str:
    """Return an instant as it is written.

    Raises:
        ValueError: The text is no instant.
    """
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("it is no instant of this calendar in UTC") from error
    return text


class ExperimentResult(Stored):
    """An experiment's figures and circumstances; the result of a failed experiment has every key, too.

    Attributes:
        work: Null where nothing was measured.
        budget: Of joules per output token, or per unit of a command's work; null without them.
        goodput: Null where the settings have no `slo`.
        gpus: Every GPU of the host by UUID, those used first.
        quality: Null where the model was asked nothing.
    """

    SCHEMA_VERSION: ClassVar[Literal[3]] = 3
    BOUNDARY_STATEMENTS: ClassVar = BOUNDARY_STATEMENTS
    NET_MEANING: ClassVar[str] = NET_MEANING

    schema_version: Literal[3] = SCHEMA_VERSION
    experiment_id: str
    study: StudyFacts | None = None
    started_utc: Annotated[str, AfterValidator(_instant)]
    config: ExperimentConfig
    status: Literal["ok", "failed", "interrupted"]
    error: Failure | None
    environment: EnvironmentSnapshot | None = None
    energy: EnergyResult | None = None
    performance: Performance | None = None
    work: Work | None = None
    goodput: Goodput | None = None
    compute: Compute | None = None
    budget: Budget | None = None
    gpus: dict[str, GpuResult] = Field(default_factory=dict)
    multi_gpu: MultiGPUMetrics | None = None
    audit: Audit | None = None
    procedure: Procedure | None = None
    quality: Quality | None = None
    spans: list[StoredSpan] = Field(default_factory=list)

    @property
    def used_gpus(self) -> dict[str, GpuResult]:
        """The GPUs that held a part of the model, by UUID."""
        return {uuid: gpu for uuid, gpu in self.gpus.items() if gpu.used}

    @property
    def conditions(self) -> dict[str, str]:
        """All conditions and settings, by name, and what the joules cover, unless GPU boards."""
        covered = {"energy boundary": "module"} if self.energy and self.energy.energy_boundary == "module" else {}
        return everything(self.config, self.environment) | covered

    @property
    def request_tokens(self) -> tuple[float | None, float | None]:
        """Mean tokens of a prompt, and of an answer at most, as settings or a file say; None where that is unknown."""
        if self.procedure and self.procedure.limit_tokens:
            return self.procedure.prompt_tokens, self.procedure.limit_tokens
        if self.config.prompts.file:
            return None, None
        prompts, answers = PromptSet.lengths(self.config)
        return prompts and prompts.mean, answers.mean

    def restarts(self, quantity: str) -> Restarts:
        """Return the restarts, in order; none where a pass lacks the quantity, or a restart has no output token.

        Joules per output token are those of the declared work, as the budget corrects them, and weigh as many tokens
        as a restart has; mean power is as it was measured.

        Args:
            quantity: A key of `statistics.RATIOS`.
        """
        windows = self.energy.windows.of_headline() if self.energy and self.energy.windows else []
        restarts = by_restart(windows)
        lacking = "total_j" in RATIOS[quantity] and any(window.total_j is None for window in windows)
        if lacking or not all(any(window.output_tokens for window in restart) for restart in restarts):
            return Restarts()
        of_groups = Restarts.of_groups(restarts, quantity)
        if quantity != ENERGY or not self.budget:
            return of_groups
        return Restarts(tuple(map(mul, self.budget.per_restart, of_groups.bottoms)), of_groups.bottoms)

    def other_questions(self, other: ExperimentResult) -> tuple[str, ...]:
        """Return the names of the tasks that asked both otherwise; with equal settings also as they were rendered."""
        both = (self, other)
        models = [(r.config.backend, r.config.quality, r.environment and r.environment.model.revision) for r in both]
        first, second = (
            {
                task.name: (task.version, task.few_shot, models[0] == models[1] and task.rendered_sha256)
                for task in (result.quality.tasks if result.quality else ())
            }
            for result in both
        )
        return tuple(name for name in first if second.get(name, first[name]) != first[name])

    @property
    def energy_figure(self) -> Figure | None:
        """Joules per output token of the declared work, corrected and with its interval; None without energy."""
        return self.budget.figure if self.budget else None

    @property
    def speed_figure(self) -> Figure | None:
        """Output tokens per second; None where nothing was measured."""
        if not (done := self.performance) or not done.output_tokens_per_s:
            return None
        return Figure(done.output_tokens_per_s, self.restarts(SPEED).interval_beside(done.draw_of_speed))

    @classmethod
    def bare(
        cls, config: ExperimentConfig, failure: Failure | None, *, started_utc: str, **parts: Any
    ) -> ExperimentResult:
        """Return a result of the settings and the outcome alone, with the parts given."""
        interrupted = failure is not None and failure.kind == Failure.INTERRUPTED
        return cls(
            experiment_id=config.experiment_id,
            started_utc=started_utc,
            config=config,
            status="ok" if failure is None else "interrupted" if interrupted else "failed",
            error=failure,
            **parts,
        )


def analyse(config: ExperimentConfig, restarts: Sequence[RestartRecord]) -> ExperimentResult:
    """Return an experiment's result, finished or failed, without its audit.

    Raises:
        ValueError: No restart recorded its environment.
    """
    environment = combined_environment(restarts)
    measured = Measured.of(config, restarts, environment)
    energy, spans = measured_energy(measured), []
    for restart in measured.restarts:
        of_passes = [(run_pass.span, run_pass.index) for run_pass in restart.passes]
        of_windows = [
            (Span("window", figure.start_ns, figure.end_ns), run_pass.index)
            for (of_restart, run_pass), figure in zip(measured.passes, measured.headline, strict=True)
            if of_restart is restart and figure.window != "drained" and figure.start_ns and figure.end_ns
        ]
        asked = [
            Span("questions", run_pass.span.start_ns, run_pass.span.end_ns)
            for evaluation in restart.evaluations
            for run_pass in evaluation.passes
        ]
        for span, number in [*((span, None) for span in (*restart.spans, *asked)), *of_passes, *of_windows]:
            joules = measured.energy_of(restart, span)
            figures = {"energy_j": joules.total_j, "timing_j": joules.timing_j, "reason": joules.reason}
            clock = environment.clock.number(restart.clock)
            spans.append(StoredSpan(**vars(span), **figures, restart=restart.restart, pass_index=number, clock=clock))
    return ExperimentResult.bare(
        config,
        next((restart.failure for restart in restarts if restart.failure), None),
        started_utc=min(restart.started_utc for restart in restarts),
        environment=environment,
        energy=energy,
        performance=performance(measured),
        work=work(measured) if measured.passes else None,
        goodput=goodput(measured),
        compute=None if config.command else compute(measured, environment, energy),
        budget=measured_budget(measured),
        procedure=procedure(measured),
        quality=quality(measured),
        multi_gpu=multi_gpu(energy),
        gpus=gpu_results(measured),
        spans=spans,
    )


def combined_environment(restarts: Sequence[RestartRecord]) -> EnvironmentSnapshot:
    """Return the environment of the last restart that loaded a model, with clocks, prompts and changes of all restarts.

    Raises:
        ValueError: No restart recorded its environment.
    """
    environments = [restart.environment for restart in restarts if restart.environment]
    if not environments:
        raise ValueError("no restart recorded its environment")
    loaded = [environment for environment in environments if environment.runner.framework]
    chosen, passes = (loaded or environments)[-1], [run_pass for restart in restarts for run_pass in restart.passes]
    times_utc = (environment.model.template_time_utc for environment in reversed(environments))
    chat = {
        "rendered_sha256": next((run_pass.rendered_sha256 for run_pass in passes if run_pass.index == 0), None),
        "template_time_utc": next(filter(None, times_utc), None),
    }
    of_all = {
        "clock": RestartRecord.clock_facts(restarts),
        "dataset_sha256": next((run_pass.prompts_sha256 for run_pass in passes), None),
        "changes": _changes(restarts),
        "model": chosen.model.model_copy(update=chat),
    }
    return chosen.model_copy(update=of_all)


def _changes(restarts: Sequence[RestartRecord]) -> list[snapshot.ConditionChange] | None:
    """Return the conditions that differ between restarts with passes; None where one of several did not record them."""
    run_pass = [restart for restart in restarts if restart.passes]
    conditions = [required_conditions(restart.environment) if restart.environment else {} for restart in run_pass]
    if len(run_pass) > 1 and not all(conditions):
        return None
    changes = []
    for name in differing(conditions):
        numbers: dict[str, list[int]] = {}
        for restart, by_name in zip(run_pass, conditions, strict=True):
            with_value = numbers.setdefault(by_name.get(name, ABSENT), [])
            if restart.restart not in with_value:
                with_value.append(restart.restart)
        changes.append(snapshot.ConditionChange(name=name, restarts=numbers))
    return changes

"""A plan for a terminal: what would run, in which load groups, on what, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.checks import ExecutionPlan
from wattdock.reports.terminal import Sheet, console
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.config import ExperimentConfig, Study
    from wattdock.errors import WattdockError
    from wattdock.execution import Forecast

COLUMNS = ("group", "experiment", "id", "model", "prompts", "batch", "restarts × passes", "on", "expected")
# A terminal is no place for more; --json has all.
SHOWN = 200


def print_plan(study: Study, checked: Sequence[ExecutionPlan | WattdockError], forecast: Forecast) -> None:
    """Print the experiments of a study, what is wrong with any of them, and what the whole takes.

    Args:
        study: As expanded.
        checked: For each experiment what was decided, or why it cannot run here.
        forecast: How long each experiment and the whole are expected to take.
    """
    out = console()
    ready = [one for one in checked if isinstance(one, ExecutionPlan)]
    memory = [one.memory for one in ready if one.memory]
    for line in (*study.notes, *dict.fromkeys((*(one.decisions for one in ready), *memory))):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    numbered = [(number, position) for number, group in enumerate(forecast.groups, 1) for position in group]
    rows = [
        _cells(number, study.experiments[at], checked[at], str(forecast.experiments[at]))
        for number, at in numbered[:SHOWN]
    ]
    out.print(Sheet(COLUMNS, rows))
    if len(numbered) > SHOWN:
        out.print(f"… and {len(numbered) - SHOWN} more; --json prints all", style="dim")
    for line in (*_troubles(study, checked), *_unchecked(study.experiments)):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(
        f"{pluralize(len(study.experiments), 'experiment')}, {pluralize(len(forecast.groups), 'load group')}, "
        f"{pluralize(forecast.passes, 'pass', 'passes')}, expected: {forecast.total}",
        highlight=False,
        soft_wrap=True,
    )


def _cells(
    group: int, config: ExperimentConfig, checked: ExecutionPlan | WattdockError, expected: str
) -> tuple[str, ...]:
    return (
        str(group),
        config.label,
        config.experiment_id[:8],
        config.model.label,
        f"{config.workload.prompts_per_pass} {config.prompts.source}",
        str(config.workload.batch_size),
        f"{config.repeats.restarts} × {config.repeats.passes}",
        _place(checked),
        expected,
    )


def _place(checked: ExecutionPlan | WattdockError) -> str:
    if not isinstance(checked, ExecutionPlan):
        return "cannot run here"
    return f"GPU {', '.join(str(gpu.index) for gpu in checked.gpus)}" if checked.gpus else "CPU"


def _unchecked(experiments: Sequence[ExperimentConfig]) -> Iterable[str]:
    """What only a hub or a runner can check, a line for each."""
    asked_of_hub = dict.fromkeys(one.model.label for one in experiments if one.model.on_hub)
    if asked_of_hub:
        yield f"not checked: {', '.join(asked_of_hub)}; a hub is asked for a model when its turn comes"
    names: dict[str, dict[str, None]] = {}
    for one in experiments:
        section, own = one.section, names.setdefault(one.backend, {})
        own.update(dict.fromkeys(f"{one.backend}.{name}" for name in section.passed_through))
        if section.arrivals is None:
            own[f"arrival: {one.workload.arrival}"] = None
    for backend, own in names.items():
        if own:
            yield f"not checked: {', '.join(own)}; only {backend}'s runner knows what its engine takes"


def _troubles(study: Study, checked: Sequence[ExecutionPlan | WattdockError]) -> Iterable[str]:
    for point in study.invalid:
        yield f"invalid: {point.name}: {point.reason}"
    for config, found in zip(study.experiments, checked, strict=True):
        if not isinstance(found, ExecutionPlan):
            yield f"cannot run here: {config.label}: {found}"

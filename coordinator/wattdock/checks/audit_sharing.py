"""Checks on who else was there: on the GPUs of an experiment, and on its machine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Check
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.analysis import EnergyResult, GpuEvidence, GpuProcessSeen, Procedure
    from wattdock.records import EnvironmentSnapshot

FIGURE_PROCESSES = 3
# The name of a check that says more than that a figure may not be published: it was slower than it is.
CPUS_ALONE = "CPUs to itself"
# Our own judgement: with more, an engine may wait for its CPUs, and its GPUs draw power meanwhile.
OTHERS_SHARE = 0.1


def sharing_checks(environment: EnvironmentSnapshot, energy: EnergyResult, procedure: Procedure) -> list[Check]:
    """Return whether the experiment had its GPUs, and its machine, to itself."""
    gpus = set(environment.gpu_uuids) | {name for name in environment.leased if name.startswith("GPU-")}
    checks = [_machine_check(environment), _cpu_check(energy)]
    if gpus:
        checks.append(_gpu_check(gpus, set(environment.gpu_uuids), energy, procedure.gpus))
    others = [one for one in energy.gpu_processes if one.gpu_uuid not in gpus]
    if others:
        # They share power, cooling and host; how much that matters is the reader's to judge.
        checks.append(Check(name="no process on other GPUs", status="warn", figure=_figure(others)))
    return checks


def _machine_check(environment: EnvironmentSnapshot) -> Check:
    alone = environment.exclusive == "machine"
    figure = "no other measurement of wattdock's" if alone else f"exclusive: {environment.exclusive}"
    return Check(name="machine to itself", status="pass" if alone else "fail", figure=figure)


def _cpu_check(energy: EnergyResult) -> Check:
    """Whether the CPUs worked for nobody else in any pass: other people's jobs hold no lease of ours."""
    shares = all_known(one.cpu_others_share for one in energy.passes)
    worst = max(shares) if shares else None
    return Check(
        name=CPUS_ALONE,
        status="unknown" if worst is None else "pass" if worst <= OTHERS_SHARE else "fail",
        figure="whose work they did is not known" if worst is None else f"others used {worst:.0%} in the worst pass",
        threshold=f"{OTHERS_SHARE:.0%}",
        source="wattdock's own judgement; of the CPUs that the runner may use, less what it and the coordinator used",
    )


def _gpu_check(gpus: set[str], used: set[str], energy: EnergyResult, evidence: Mapping[str, GpuEvidence]) -> Check:
    """Whether nobody else was on the GPUs; lists of a used one that show not even the runner show nothing."""
    listed = [one for one in energy.gpu_processes if one.gpu_uuid in gpus]
    foreign = [one for one in listed if not one.own]
    lists = min((evidence[uuid].process_lists if uuid in evidence else 0 for uuid in gpus), default=0)
    shown = {uuid for uuid in gpus if uuid in evidence and evidence[uuid].runner_lists}
    if foreign and any(one.own for one in listed):
        return Check(name="exclusive GPUs", status="fail", figure=_figure(foreign))
    if not shown or used - shown or not lists:
        seen = f"and {_figure(foreign)}, which may be it" if foreign else "and no other"
        where = f" on {', '.join(sorted(used - shown))}" if shown and used - shown else ""
        figure = f"{lists} process lists per GPU of a restart show no process of the runner{where} {seen}"
        return Check(name="exclusive GPUs", status="unknown", figure=figure)
    if unseen := max((evidence[uuid].unlisted_ends for uuid in used if uuid in evidence), default=0):
        figure = f"no process list near {unseen} begins or ends of passes of a restart shows the runner"
        return Check(name="exclusive GPUs", status="unknown", figure=figure)
    figure = f"nobody but the runner in {lists} process lists per GPU of each restart"
    return Check(name="exclusive GPUs", status="pass", figure=figure)


def _figure(processes: Sequence[GpuProcessSeen]) -> str:
    named = [
        f"process {one.pid} ({one.user or 'unknown user'}, {one.command or 'unknown command'}) on {one.gpu_uuid}"
        for one in processes[:FIGURE_PROCESSES]
    ]
    more = len(processes) - len(named)
    return "; ".join(named) + (f" and {more} more" if more else "")

"""Audit checks: did only this measurement use the machine? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIGURE_PROCESSES = 3
# Largest share of the CPUs that others may use, our own judgement: with more, GPUs may wait for the engine's CPUs.
OTHERS_SHARE = 0.1
# Most power above idle of an unused GPU: half of what a CUDA context draws on an H200 (41 W).
MAX_STRAY_W = 20.0
# Half of the smallest context (0.55 GB); an H200's driver holds 0.64 GB of an idle GPU, which older ones count as used.
# In twelve passes kept from H200s what was in use and what the runner was listed with differed by 0.009 GB.
MAX_FOREIGN_BYTES, MAX_WITH_RESERVE_BYTES, MAX_EMPTY_PERCENT = 0.3e9, 1.0e9, 1.0

CHECKS = Checklist[AuditInput]()


@CHECKS.check(
    "other measurements", question="wrong", threshold="the machine's lease, or the node's, until each pass's end"
)
def machine_alone(inputs: AuditInput) -> Outcome:
    """Whether wattdock's lease and the scheduler kept other measurements and jobs off the machine.

    And others' requests off a server that somebody else started.
    """
    exclusive, job = inputs.environment.exclusive, inputs.environment.job
    reasons = [] if exclusive == "machine" else [f"allowed by exclusive: {exclusive}"]
    reasons += dict.fromkeys(run_pass.lease_fault for run_pass in inputs.energy.passes if run_pass.lease_fault)
    if reasons:
        return Outcome("fail", "; ".join(reasons))
    serving = inputs.result.performance and inputs.result.performance.serving
    if inputs.config.section.server_url and not (serving and serving.others_counted):
        remedy = "measure a vLLM server with its statistics on, or let wattdock start the engine"
        return Outcome("unknown", "the server does not tell the tokens of others' requests", remedy=remedy)
    if job is None or job.exclusive or (job.alone_with and inputs.environment.gpu_uuids):
        alone = f"; job {job.id} had {job.alone_with} alone" if job else ""
        return Outcome(verdict(failed=False, known=bool(inputs.energy.passes)), f"none by wattdock{alone}")
    # A scheduler may hide the GPUs of other jobs, and who heats them; joules of the CPU are of the whole node.
    visible = len(inputs.environment.host_gpus)
    known = bool(inputs.environment.gpu_uuids) and bool(job.node_gpus) and visible >= (job.node_gpus or 0)
    shared = "may be shared" if job.exclusive is None else "is shared"
    of_all = "" if job.node_gpus is None else f" of {job.node_gpus}"
    figure = f"{job.node} {shared}; {visible}{of_all} GPUs visible"
    remedy = "set fleet.exclusive: true, which exclusive: machine does, too"
    return Outcome(verdict(failed=False, known=known), figure, remedy=remedy)


@CHECKS.check(
    Audit.CPUS_ALONE,
    question="wrong",
    threshold=f"{OTHERS_SHARE:.0%}",
    source="wattdock's own judgement; of the CPUs that the runner may use, less what it and the coordinator used",
)
def cpus_alone(inputs: AuditInput) -> Outcome:
    """Whether nobody else's work kept the CPUs busy in any pass: other people's jobs hold no lease."""
    every = [run_pass.cpu_others_share for run_pass in inputs.energy.passes]
    if (most := _most(every)) is None:
        return Outcome("unknown", "CPU time of other processes is unknown")
    unknown = every.count(None)
    missing = f"; unknown in {pluralize(unknown, 'pass', 'passes')}" if unknown else ""
    remedy = "end other work on these CPUs; top names it"
    status = verdict(failed=most > OTHERS_SHARE, known=not unknown)
    return Outcome(status, f"{most:.0%} in the worst pass{missing}", remedy=remedy)


@CHECKS.check(
    Audit.GPUS_ALONE, question="wrong", remedy="wattdock gpus shows who uses which GPU; choose others with --gpus"
)
def gpus_alone(inputs: AuditInput) -> Outcome | None:
    """Whether only the runner was on the GPUs; unknown where process lists do not even show the runner."""
    if not (gpus := _own_gpus(inputs)):
        return None
    used, evidence = set(inputs.environment.gpu_uuids), inputs.result.gpus
    listed = [process for process in inputs.energy.gpu_processes if process.gpu_uuid in gpus]
    foreign = [process.description for process in listed if not process.of_runner]
    lists = min(evidence[uuid].process_lists if uuid in evidence else 0 for uuid in gpus)
    showing = {uuid for uuid in gpus if uuid in evidence and evidence[uuid].runner_lists}
    if foreign and len(foreign) < len(listed):
        return Outcome("fail", _processes(foreign))
    if not showing or used - showing or not lists:
        others = f"; these may be the runner: {_processes(foreign)}" if foreign else " and no other"
        where = f" on {', '.join(sorted(used - showing))}" if showing and used - showing else ""
        figure = f"{lists} process lists per GPU of a restart show no process of the runner{where}{others}"
        return Outcome("unknown", figure)
    if unseen := max((evidence[uuid].unlisted_ends for uuid in used), default=0):
        figure = f"no process list near {unseen} begins or ends of passes of a restart shows the runner"
        return Outcome("unknown", figure)
    return Outcome("pass", f"nobody but the runner in {lists} process lists per GPU of each restart")


@CHECKS.check(
    Audit.MEMORY_ALONE,
    question="wrong",
    source="memory and utilisation before the runner; in the passes, memory less the runner's by process lists",
    remedy="wattdock gpus shows who uses a GPU",
)
def memory_alone(inputs: AuditInput) -> Outcome | None:
    """Whether the GPUs were empty before the runner, and memory in the passes was the runner's.

    Memory in the passes is never worse than unknown: what an engine allocates and frees between two lists looks the
    same. Process lists alone can be empty or late.
    """
    if not (used := inputs.environment.used_gpus):
        return None
    apart = all(gpu.vram_reserved_bytes is not None for gpu in used)
    limit_bytes = MAX_FOREIGN_BYTES if apart else MAX_WITH_RESERVE_BYTES
    idle = [idle for idle in inputs.energy.idle_baselines or () if idle.used]
    # A kernel that ran while the loaded engine was idle was somebody else's, too.
    every_busy = [baseline.utilization_percent for baseline in idle]
    every_in_use = [baseline.memory_used_bytes for baseline in idle if baseline.state == "empty"]
    every_foreign = [gpu.foreign_bytes for gpu in inputs.result.used_gpus.values()]
    busy, in_use, foreign = _most(every_busy), _most(every_in_use), _most(every_foreign)
    every = (every_in_use, every_busy, every_foreign)
    in_part = any(None in values and _most(values) is not None for values in every)
    figures = ["memory before the runner unknown" if in_use is None else f"{in_use / 1e9:.2f} GB in use before"]
    figures += ["utilisation unknown" if busy is None else f"{busy:.1f} % busy while idle"]
    beyond_gb = None if foreign is None else max(0.0, foreign) / 1e9
    figures += ["unknown in the passes" if beyond_gb is None else f"up to {beyond_gb:.2f} GB beyond the runner's"]
    restarts = {run_pass.restart for run_pass in inputs.energy.passes}
    seen = {(baseline.restart, baseline.gpu_uuid) for baseline in idle if baseline.state == "empty"}
    missing = {(restart, gpu.uuid) for restart in restarts for gpu in used} - seen
    figures += [f"no reading before the runner in {len(missing)} restarts and GPUs"] if missing else []
    figures += ["not known of every GPU"] if in_part else []
    failed = (in_use or 0.0) > limit_bytes or (busy or 0.0) > MAX_EMPTY_PERCENT
    known = bool(every_in_use) and not missing and (foreign or 0.0) <= limit_bytes
    known = known and all(None not in values for values in every)
    threshold = f"{limit_bytes / 1e9:g} GB, {MAX_EMPTY_PERCENT:g} %"
    return Outcome(verdict(failed=failed, known=known), "; ".join(figures), threshold)


@CHECKS.check(
    "other GPUs",
    question="wrong",
    threshold=f"at most {MAX_STRAY_W:g} W above idle in each pass",
    source="energy counters in the passes and before their runner started; process lists",
    remedy="end what runs on the host's other GPUs",
)
def other_gpus_idle(inputs: AuditInput) -> Outcome | None:
    """Whether the host's other GPUs, which share its power and cooling, were idle: a CUDA context draws power."""
    above_w = {uuid: gpu.above_idle_w for uuid, gpu in inputs.result.gpus.items() if not gpu.used}
    if not above_w:
        return None
    own = _own_gpus(inputs)
    others = [process.description for process in inputs.energy.gpu_processes if process.gpu_uuid not in own]
    figures = [
        f"{uuid} {'unknown before the runner' if watts is None else f'{watts:+.0f} W'}"
        for uuid, watts in above_w.items()
    ]
    status = verdict(failed=(_most(above_w.values()) or 0.0) > MAX_STRAY_W, known=None not in above_w.values())
    figure = "; ".join([*figures, *([_processes(others)] if others else [])])
    return Outcome("warn" if status == "pass" and others else status, figure)


def _own_gpus(inputs: AuditInput) -> set[str]:
    return {*inputs.environment.gpu_uuids, *inputs.environment.leased_gpus}


def _most(values: Iterable[float | None]) -> float | None:
    """Return the largest known value: what is wrong in one place is wrong though another place is unknown."""
    return max((value for value in values if value is not None), default=None)


def _processes(descriptions: Sequence[str]) -> str:
    return listed(descriptions, FIGURE_PROCESSES, between="; ")

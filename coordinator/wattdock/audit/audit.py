"""The audit: checks on a finished experiment, each with the figure behind it, and one verdict. Pure.

Here: what was measured, and who else was there; `audit_procedure` and `audit_gpus` hold the rest. A new check is a
function in one of the three, decorated with `CHECKS.check`. Unknown never passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit, analyse
from wattdock.audit import gpus as audit_gpus
from wattdock.audit import procedure as audit_procedure
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.config import ExperimentConfig
from wattdock.text import is_on_loopback, listed, pluralize
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.records import RestartRecord

MIN_WINDOW_S: float = ExperimentConfig.PUBLICATION["workload.min_duration_s"]
# Conditions that do not change a pass: the coordinator only waits meanwhile, and a cache fills the memory that is left.
HARMLESS_CHANGES = ("Python of the coordinator", "warnings of the runner", "engine: num_gpu_blocks")
FIGURE_PROCESSES = 3
# Largest share of the CPUs that others may use, our own judgement: with more, GPUs may wait for the engine's CPUs.
OTHERS_SHARE = 0.1
CHECKS = Checklist[AuditInput]()


def audit(result: ExperimentResult) -> Audit:
    """Return every check on a result and the verdict.

    Raises:
        ValueError: The result lacks environment, energy or procedure: nothing was measured.
    """
    inputs = AuditInput(result)
    checklists = (CHECKS, audit_procedure.CHECKS, audit_gpus.CHECKS)
    checks = [check for checklist in checklists for check in checklist.run(inputs)]
    return Audit.of(checks, result.config.looser_than_published())


def audited(config: ExperimentConfig, restarts: Sequence[RestartRecord]) -> ExperimentResult:
    """Return an experiment's result with its audit.

    Raises:
        ValueError: No restart recorded its environment.
    """
    result = analyse(config, restarts)
    return result.model_copy(update={"audit": audit(result)})


@CHECKS.check(Audit.COMPLETION, group="wrong")
def completion(inputs: AuditInput) -> Outcome:
    """Whether the experiment ran to its end."""
    error = inputs.result.error
    return Outcome(verdict(failed=error is not None), error.message if error else "no failure")


@CHECKS.check("GPUs", remedy="measure on a machine with an NVIDIA GPU (wattdock doctor)")
def gpus_used(inputs: AuditInput) -> Outcome:
    """Whether GPUs were used: without one, there are no joules and nothing to check them by."""
    count = inputs.environment.gpu_count
    return Outcome(verdict(failed=not count), f"{count} used" if count else f"none used: {inputs.energy.reason}")


@CHECKS.check("energy", causes=("GPUs", "meter losses"))
def energy_measured(inputs: AuditInput) -> Outcome:
    """Whether there is a total over the GPUs used."""
    energy = inputs.energy
    figure = f"not measured: {energy.reason}" if energy.reason else _source(inputs)
    return Outcome(verdict(failed=energy.total_j is None), figure)


@CHECKS.check("energy source", threshold="the GPUs' energy counters, not integrated power", needs=("energy",))
def from_counter(inputs: AuditInput) -> Outcome:
    """Whether energy is the counter's, not an integral over power samples."""
    source = inputs.energy.source
    return Outcome(verdict(failed=source not in ("counter", None), known=source is not None), _source(inputs))


def _source(inputs: AuditInput) -> str:
    return f"source {inputs.energy.source}" if inputs.energy.source else "no source"


@CHECKS.check("runners of a restart", threshold="one: the study was not interrupted within a restart")
def one_runner(inputs: AuditInput) -> Outcome:
    """Whether one runner made all passes of each restart; several would hide part of what restarts differ by."""
    most = inputs.procedure.runners_per_restart
    if not most:
        return Outcome("unknown", "no pass")
    return Outcome("warn", f"a restart's passes came from {most} runners") if most > 1 else Outcome("pass", "one each")


@CHECKS.check("clock", group="wrong")
def clock_trusted(inputs: AuditInput) -> Outcome:
    """Whether the runner's clock was the host's after every pass; unknown where a runner died before the check."""
    clock = inputs.environment.clock
    slowest = "unknown" if clock.round_trip_max_s is None else f"{clock.round_trip_max_s * 1e3:.1f} ms"
    unchecked = clock.unchecked_passes
    missing = f"; not checked after {pluralize(unchecked, 'pass', 'passes')}" if unchecked else ""
    status = verdict(failed=not clock.trusted, known=not unchecked)
    return Outcome(status, f"{clock.checks} checks, offset at most {slowest}{missing}")


@CHECKS.check("weights", threshold="a trained model's", remedy="set model to one with trained weights")
def weights_real(inputs: AuditInput) -> Outcome:
    """Whether the weights were a trained model's."""
    weights = inputs.environment.model.weights
    return Outcome(verdict(failed=not weights.startswith("real")), weights)


@CHECKS.check(
    "model revision",
    group="irreproducible",
    causes=("weights",),
    remedy="take the model from a hub, where it has a revision",
)
def model_pinned(inputs: AuditInput) -> Outcome:
    """Whether anybody can get the same model."""
    revision = inputs.environment.model.revision
    return Outcome(verdict(failed=revision is None), revision or "none")


@CHECKS.check(
    "image",
    group="irreproducible",
    threshold="a registry's digest in docker/images.lock, under --locked",
    source="the engine's image, held against the lock before the start",
    remedy="build, push and lock an image (docs/publication.md), then wattdock run --publishable FILE",
)
def image_pinned(inputs: AuditInput) -> Outcome:
    """Whether anybody can get the image that ran; an image's id means something on one machine only."""
    inside = inputs.environment.container
    if inside is None:
        return Outcome("fail", "none: the runner was a plain process")
    if digest := inside.locked_digest:
        if not is_on_loopback(digest):
            return Outcome("pass", digest)
        remedy = "push it to a registry that others reach, and lock it there"
        return Outcome("warn", f"{digest}: the registry of that machine alone", remedy=remedy)
    return Outcome("fail", f"{inside.image_id[:19]}, {'locked, but in no registry' if inside.locked else 'not locked'}")


@CHECKS.check(
    "environment of the restarts",
    group="irreproducible",
    threshold="no difference in hardware, limits, versions, image, model or effective engine arguments",
    source="recorded with each restart's passes",
)
def one_environment(inputs: AuditInput) -> Outcome:
    """Whether nothing differed between restarts: an interrupted study may go on under another driver."""
    if not inputs.energy.passes:
        return Outcome("unknown", "no pass")
    if (changes := inputs.environment.changes) is None:
        return Outcome("unknown", "not recorded for every restart")
    matter = [change for change in changes if change.name not in HARMLESS_CHANGES]
    figure = "; ".join(map(str, matter or changes)) or "nothing differs"
    return Outcome("fail" if matter else "warn" if changes else "pass", figure)


@CHECKS.check(
    "pass length",
    setting="workload.min_duration_s",
    remedy=f"set workload.min_duration_s={MIN_WINDOW_S:g} or more",
    threshold=f"{MIN_WINDOW_S:g} s",
    source="arXiv 2312.02741 and peers: below 5 s figures vary, 20 s is common for publication",
)
def window_long_enough(inputs: AuditInput) -> Outcome:
    """Whether the shortest pass is long enough for a stable figure."""
    shortest = min((run_pass.duration_s for run_pass in inputs.energy.passes), default=0.0)
    return Outcome(verdict(failed=shortest < MIN_WINDOW_S), f"shortest pass {shortest:.1f} s")


@CHECKS.check("token counts", group="wrong")
def token_counts(inputs: AuditInput) -> Outcome:
    """Whether all counts of a pass's tokens agree."""
    passes, wrong = inputs.energy.passes, inputs.procedure.token_disagreements
    figure = "; ".join(wrong) or f"{sum(run_pass.output_tokens for run_pass in passes)} output tokens"
    return Outcome(verdict(failed=bool(wrong) or not passes), figure)


@CHECKS.check("work outside passes", group="wrong")
def drained(inputs: AuditInput) -> Outcome:
    """Whether all of a pass's work, and so all of its energy, lies inside its span."""
    undrained = inputs.procedure.undrained
    status = verdict(failed=bool(undrained) or not inputs.energy.passes)
    return Outcome(status, "; ".join(undrained) or "all work inside")


@CHECKS.check("other measurements", setting="exclusive", threshold="the machine's lease until the end of each pass")
def machine_alone(inputs: AuditInput) -> Outcome:
    """Whether wattdock's lease kept other measurements off the machine; who else works there, the next checks see."""
    exclusive = inputs.environment.exclusive
    reasons = [] if exclusive == "machine" else [f"allowed by exclusive: {exclusive}"]
    reasons += dict.fromkeys(run_pass.lease_fault for run_pass in inputs.energy.passes if run_pass.lease_fault)
    known = bool(inputs.energy.passes)
    return Outcome(
        verdict(failed=bool(reasons), known=known), "; ".join(reasons) or "none by wattdock; others hold no lease"
    )


@CHECKS.check(
    Audit.CPUS_ALONE,
    group="wrong",
    threshold=f"{OTHERS_SHARE:.0%}",
    source="wattdock's own judgement; of the CPUs that the runner may use, less what it and the coordinator used",
)
def cpus_alone(inputs: AuditInput) -> Outcome:
    """Whether nobody else's work kept the CPUs busy in any pass: other people's jobs hold no lease."""
    shares = all_known(run_pass.cpu_others_share for run_pass in inputs.energy.passes)
    if not shares:
        return Outcome("unknown", "CPU time of other processes is unknown")
    remedy = "end other work on these CPUs; top names it"
    return Outcome(verdict(failed=max(shares) > OTHERS_SHARE), f"{max(shares):.0%} in the worst pass", remedy=remedy)


@CHECKS.check(
    Audit.GPUS_ALONE, group="wrong", remedy="wattdock gpus shows who uses which GPU; choose others with --gpus"
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


@CHECKS.check("processes on other GPUs")
def other_gpus_idle(inputs: AuditInput) -> Outcome | None:
    """Whether anybody used the host's other GPUs, which share its power and cooling."""
    gpus = _own_gpus(inputs)
    others = [process.description for process in inputs.energy.gpu_processes if process.gpu_uuid not in gpus]
    return Outcome("warn", _processes(others)) if others else None


@CHECKS.check(
    "other jobs on the node",
    threshold="none, or every GPU of the node visible, so that other checks see who uses it",
    source="the scheduler's answer when the task began",
    remedy="set fleet.exclusive: true, which exclusive: machine does, too",
)
def node_alone(inputs: AuditInput) -> Outcome | None:
    """Whether the job had its node alone: a scheduler may hide the GPUs of other jobs, and who heats them."""
    if (job := inputs.environment.job) is None:
        return None
    if job.exclusive:
        return Outcome("pass", f"job {job.id} had {job.node} alone")
    visible = len(inputs.environment.host_gpus)
    # Joules of the CPU are of the whole node.
    known = bool(inputs.environment.gpu_uuids) and bool(job.node_gpus) and visible >= (job.node_gpus or 0)
    shared = "may be shared" if job.exclusive is None else "is shared"
    of_all = "" if job.node_gpus is None else f" of {job.node_gpus}"
    return Outcome(verdict(failed=False, known=known), f"{job.node} {shared}; {visible}{of_all} GPUs visible")


def _own_gpus(inputs: AuditInput) -> set[str]:
    return {*inputs.environment.gpu_uuids, *inputs.environment.leased_gpus}


def _processes(descriptions: list[str]) -> str:
    return listed(descriptions, FIGURE_PROCESSES, between="; ")

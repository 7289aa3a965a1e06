"""Audit checks on the first question: can others repeat the measurement? Pure."""

from __future__ import annotations

from wattdock.analysis import Audit
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.text import is_on_loopback, unbuildable

# Conditions that do not change a pass: the coordinator only waits meanwhile, and a cache fills the memory that is left.
HARMLESS_CHANGES = ("Python of the coordinator", "warnings of the runner", "engine: num_gpu_blocks")
UNCHECKED = "as declared; not checked: the server was running"
# What a kind of provenance does not hold.
LOCAL_WEIGHTS = "a local folder's: its digest identifies the weights, and nothing shows that they are trained"
COPIED_WEIGHTS = "a copied cache's, in which no hash of the hub's vouches for every file"
IMAGE_LACKS = "an image does not hold the driver, the kernel and the firmware, which the result records"
LOCK_LACKS = "a lock does not hold the system's libraries and tools; driver, kernel, Python's build are in the result"
COMMIT_IT = "commit what the command runs, and run it in that checkout; name what it writes in .gitignore"
COMMIT_WATTDOCK = "commit wattdock's files, and run from a clone"
NAME_IMAGE = "name an image by its digest: --image NAME@sha256:…"

CHECKS = Checklist[AuditInput]()


@CHECKS.check(
    "weights",
    question="repeat",
    threshold="a trained model's, with a revision",
    remedy="set model to one of a hub, with its revision",
)
def weights_pinned(inputs: AuditInput) -> Outcome | None:
    """Whether the weights were a trained model's, and anybody can get the same."""
    if inputs.config.command:
        return None
    model, draft = inputs.environment.model, inputs.config.draft
    # Earlier versions told the weights of a local folder by samples.
    pinned = model.weights.startswith("real") and model.revision is not None and "sampled-" not in model.revision
    figure = f"{model.weights}, {f'revision {model.revision}' if model.revision else 'no revision'}"
    if pinned and inputs.config.section.server_url:
        return Outcome("warn", f"{figure}, {UNCHECKED}", remedy="let wattdock start the engine")
    if pinned and (model.kind == "path" or (draft and draft.path)):
        return Outcome("warn", f"{figure}; {LOCAL_WEIGHTS}")
    if pinned and "hub-cache:" in f"{model.revision} {model.draft}":
        return Outcome("warn", f"{figure}; {COPIED_WEIGHTS}", remedy="let wattdock download the model")
    return Outcome(verdict(failed=not pinned), figure)


@CHECKS.check(
    "command",
    question="repeat",
    threshold="files of a commit without changes",
    source="the checkout that the command runs in, and hashes of the files that its words name",
    remedy=COMMIT_IT,
)
def command_pinned(inputs: AuditInput) -> Outcome | None:
    """Whether anybody can get the program that a command ran."""
    if not inputs.config.command:
        return None
    model = inputs.environment.model
    commit, hashed = model.revision, "".join(f"; {name} {digest[:16]}" for name, digest in model.files.items())
    return Outcome(verdict(failed=commit is None or "-dirty" in commit), f"{commit or 'of no commit'}{hashed}")


@CHECKS.check(
    "software",
    question="repeat",
    threshold="an image by a registry's digest, or an environment of locked packages and a commit, under --locked",
    source="the engine's image, or every file of the packages, held against the lock before the start",
    remedy="run with --locked: an image that was pushed (docs/publication.md), or --launcher process",
)
def software_pinned(inputs: AuditInput) -> Outcome:
    """Whether anybody can get what ran: its image, or all of its packages; and wattdock's own commit."""
    environment, inside = inputs.environment, inputs.environment.container
    own = "" if environment.wattdock_dirty else environment.wattdock_commit or ""
    changed = None if own else Outcome("fail", "wattdock is of no commit, or has changes", remedy=COMMIT_WATTDOCK)
    if (server := inputs.result.config.section).server_url:
        if declared := getattr(server, "environment", None):
            return changed or Outcome("warn", f"{declared}, {UNCHECKED}")
        remedy = "declare what the server runs in: url.environment: IMAGE@sha256:…; or let wattdock start it"
        return Outcome("fail", "a server that was running: its image or packages are not declared", remedy=remedy)
    if packages := environment.packages:
        lock = f"lock of {packages.packages} packages, {packages.lock_sha256[:12]}"
        if foreign := packages.foreign_code:
            remedy = "change only the lock in your copy of a backend, not its code"
            return Outcome("fail", f"{lock}; not wattdock's own: {', '.join(foreign)}", remedy=remedy)
        return changed or Outcome("pass", f"{lock}, wattdock {own[:12]}; {LOCK_LACKS}")
    is_command = inputs.config.command is not None
    if inside is None:
        return Outcome("fail", "not locked: a plain process", remedy=NAME_IMAGE if is_command else None)
    # The image of a command is whatever its user names.
    is_named = is_command and "@sha256:" in (inputs.config.container.image or "")
    if digest := environment.image_digest if is_named else inside.locked_digest:
        if not is_on_loopback(digest):
            return changed or Outcome("pass", f"{digest}; {IMAGE_LACKS}")
        remedy = "push it to a registry that others reach, and lock it there"
        # A registry that anybody can start proves nothing; what others can still do is build the image, on its base.
        lacking = unbuildable(None if is_named else inside.revision, inside.base_digest)
        how = lacking[0].partition(";")[0] if lacking else f"build it from commit {inside.revision}"
        return changed or Outcome("fail" if lacking else "warn", f"{digest}: {Audit.ONLY_THERE}; {how}", remedy=remedy)
    kind = "locked, but in no registry" if inside.locked else "not locked"
    if inside.engine == "apptainer" and not environment.image_digest:
        kind = "a file without a registry's digest"
    return Outcome("fail", f"{inside.image_id[:19]}, {kind}")


@CHECKS.check(
    "environment of the restarts",
    question="repeat",
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
    "runners of a restart", question="repeat", threshold="one: the study was not interrupted within a restart"
)
def one_runner(inputs: AuditInput) -> Outcome:
    """Whether one runner made all passes of each restart; several would hide part of what restarts differ by."""
    most = inputs.procedure.runners_per_restart
    if not most:
        return Outcome("unknown", "no pass")
    if most > 1:
        return Outcome("fail", f"{most} made the passes of one restart", remedy="measure anew, without interruption")
    return Outcome("pass", "one each")

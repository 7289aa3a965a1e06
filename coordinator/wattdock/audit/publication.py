"""What stands between a study and figures that may be published, as far as can be told before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.audit.repeatable import COMMIT_IT, COMMIT_WATTDOCK, LOCAL_WEIGHTS, NAME_IMAGE
from wattdock.errors import WattdockError
from wattdock.host import GpuInventory, Machine
from wattdock.launch.images import find_locked, read_lock
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig


def left_to_do(
    experiments: Sequence[ExperimentConfig], revision: str | None, *, on_nodes: bool = False
) -> tuple[list[str], list[str]]:
    """Return what a person has to do before these experiments' figures can be publishable, a line each.

    Args:
        revision: Of wattdock's own `Machine.checkout`.
        on_nodes: Whether a cluster's nodes measure, whose GPUs only a task sees.

    Returns:
        These lines, and those of what others will lack, or nobody can check, a warning each.

    Raises:
        PreflightError: The driver cannot be talked to.
        ConfigError: The lock of images cannot be read.
    """
    lines, warned = list[str](), list[str]()
    for config in experiments:
        loose = config.looser_than_published().values()
        lines += [f"settings: the study, or a flag, sets {text}; take that out" for text in loose]
        if config.command:
            checkout = Machine.checkout(config.command.working_folder, *config.command.filled_in("{gpus}")[0])
            changes = [f"not of the commit: {listed(checkout.changes)}"] if checkout.changes else []
            wrong = changes if checkout.commit else ["its files are of no commit"]
            lines += [f"command: {text}; {COMMIT_IT}" for text in wrong]
        if shape := config.model.shape:
            lines.append(f"model: shape:{shape} has random weights; name a trained model of a hub, with its revision")
        local = (spec.path for spec in (config.model, config.draft) if spec and spec.path)
        warned += [f"model: {path}: {LOCAL_WEIGHTS}" for path in local]
    if not on_nodes and (reason := GpuInventory.here().reason):
        lines.append(f"GPU: {reason}; measure on a machine with an NVIDIA GPU")
    if any(config.command and "@sha256:" not in (config.container.image or "") for config in experiments):
        lines.append(f"software: {NAME_IMAGE}")
    experiments = [config for config in experiments if not config.command]
    if any(config.section.server_url and not getattr(config.section, "environment", None) for config in experiments):
        lines.append("software: a server that runs already; declare url.environment, or let wattdock start the engine")
    lock, started = read_lock(), [config for config in experiments if not config.section.server_url]
    contained = dict.fromkeys((config.backend, config.launcher) for config in started if config.launcher != "process")
    for backend, launcher in contained:
        try:
            lock.pushed(backend) if launcher == "apptainer" else find_locked(backend, lock)
        except WattdockError as error:
            lines.append(f"software: {error}; steps: docs/publication.md; without containers add --launcher process")
    for image in (lock.images[name] for name in sorted({name for name, _ in contained} & lock.images.keys())):
        (lines if image.is_only_here else warned).extend(f"software: {image.digest}: {why}" for why in image.warnings)
    if revision is None or revision.endswith("-dirty"):
        lines.append(f"software: wattdock is of no commit, or has changes; {COMMIT_WATTDOCK}")
    return list(dict.fromkeys(lines)), list(dict.fromkeys(warned))

"""What stands between a study and figures that may be published, as far as can be told before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.audit.repeatable import COMMIT_IT, NAME_IMAGE
from wattdock.errors import WattdockError
from wattdock.host import GpuInventory, Machine
from wattdock.launch.images import find_locked, read_lock
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import CommandSection, ExperimentConfig


def left_to_do(
    experiments: Sequence[ExperimentConfig], revision: str | None, *, on_nodes: bool = False
) -> tuple[list[str], list[str]]:
    """Return what a person has to do before these experiments' figures can be publishable, a line each.

    Args:
        revision: Of wattdock's own `Machine.checkout`.
        on_nodes: Whether a cluster's nodes measure, whose GPUs only a task sees.

    Returns:
        These lines, and those of what others will lack that get or build the image, a warning each.

    Raises:
        PreflightError: The driver cannot be talked to.
        ConfigError: The lock of images cannot be read.
    """
    lines, warned = list[str](), list[str]()
    for config in experiments:
        loose = config.looser_than_published().values()
        lines += [f"settings: the study, or a flag, sets {text}; take that out" for text in loose]
        if config.command:
            lines += _left_of_command(config.command)
        if shape := config.model.shape:
            lines.append(f"model: shape:{shape} has random weights; name a trained model of a hub, with its revision")
        elif folder := config.model.path:
            lines.append(f"model: the folder {folder} has no revision; name a model of a hub, with its revision")
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
            hint = "docs/publication.md has the steps; without containers add --launcher process"
            lines.append(f"software: {error}; {hint}")
    for image in (lock.images[name] for name in sorted({name for name, _ in contained} & lock.images.keys())):
        (lines if image.is_only_here else warned).extend(f"software: {image.digest}: {why}" for why in image.warnings)
    is_process = any(config.launcher == "process" for config in started)
    if is_process and (revision is None or revision.endswith("-dirty")):
        lines.append("software: wattdock is of no commit, or has changes; commit its files, and run from a clone")
    return list(dict.fromkeys(lines)), warned


def _left_of_command(command: CommandSection) -> list[str]:
    """Return what keeps others from getting the program that a command runs."""
    checkout = Machine.checkout(command.working_folder)
    if checkout.commit and not checkout.changes:
        return []
    wrong = f"not of the commit: {listed(checkout.changes)}" if checkout.commit else "its files are of no commit"
    return [f"command: {wrong}; {COMMIT_IT}"]

"""Every error a user can meet, and the exit code each one ends the command with.

    WattdockError
    ├── ConfigError      2  what a person wrote is wrong
    ├── PreflightError   3  this machine cannot do what was asked
    ├── LaunchError      4  the runner did not start
    ├── RunnerError      5  the runner started and failed
    ├── MeterError       6  energy could not be read, or cannot be trusted
    │   └── ClockError      runner and host do not share a clock
    └── StoreError       7  the result could not be written or read

An error names the value that was seen, the next step, and the cause that programs act on.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from wattdock.secrets import withheld

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExitCode(IntEnum):
    """What the process ends with; documented in docs/exit-codes.md and stable."""

    OK = 0
    BUG = 1
    CONFIG = 2
    PREFLIGHT = 3
    LAUNCH = 4
    RUNNER = 5
    METER = 6
    STORE = 7
    NOT_PUBLISHABLE = 8
    REGRESSION = 9
    UNDECIDED = 10
    INTERRUPTED = 130


class Cause(StrEnum):
    """Why something failed, as programs act on it; results store the value."""

    # While an experiment was measured; the first eight have advice.
    KV_CACHE = "KV cache too small"
    HOST_MEMORY = "out of host memory"
    GPU_MEMORY = "out of GPU memory"
    MEMORY = "out of memory"
    EXCHANGE = "GPUs cannot exchange data"
    HANG = "hang"
    WORKER = "worker died"
    RUNNER = "runner died"
    COMMAND = "command failed"
    NOT_METERED = "energy not metered"
    OTHER_CLOCK = "another clock"
    NODE = "node lost"
    # What a person wrote.
    UNKNOWN_SETTING = "unknown setting"
    INVALID_VALUE = "invalid value"
    SECRET = "holds a secret"
    TOO_LARGE = "too large"
    # Files and folders.
    MISSING = "missing"
    NOT_A_FILE = "not a regular file"
    NOT_PERMITTED = "not permitted"
    OTHERS_COULD_WRITE = "others could write it"
    MALFORMED = "malformed"
    DAMAGED = "damaged"
    EMPTY = "nothing there"
    NO_SPACE = "no space left"
    RUNS_CODE = "would run code"
    NOT_FETCHED = "not fetched"
    DOES_NOT_FIT = "does not fit"
    # This machine.
    NO_DRIVER = "driver does not answer"
    NO_GPU = "no such GPU"
    GPU_BUSY = "GPUs in use"
    GPU_LOST = "GPU lost"
    MIG_SLICE = "MIG slice"
    LEASE_HELD = "leased by others"
    IN_USE = "used by another run"
    NO_ENGINE = "no container engine"
    NO_IMAGE = "no image"
    VERSION = "unsupported version"
    # What an earlier run began cannot go on.
    STUDY_CHANGED = "study changed"
    PROMPTS_CHANGED = "prompts changed"
    MODEL_CHANGED = "model changed"
    OTHER_MACHINE = "another machine"


# What this package's own file functions and the kernel report; others have no cause.
ERRNO_CAUSES = {
    errno.ENOENT: Cause.MISSING,
    **dict.fromkeys((errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO), Cause.NOT_A_FILE),
    errno.EACCES: Cause.NOT_PERMITTED,
    errno.EPERM: Cause.OTHERS_COULD_WRITE,
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), Cause.NO_SPACE),
}


class WattdockError(Exception):
    """Base of all errors that a user can meet; it holds no secret, whoever worded it.

    Attributes:
        what: What is wrong, with the value that was seen.
        remedy: The next step.
    """

    exit_code = ExitCode.BUG
    usual_cause: Cause | None = None

    def __init__(self, what: str, remedy: str | None = None, *, cause: Cause | None = None) -> None:
        super().__init__(what)
        self.what, self.remedy = withheld(what, keep_paths=True), remedy and withheld(remedy, keep_paths=True)
        self._cause = cause

    @property
    def cause(self) -> Cause | None:
        """The cause given, or that of the exception it was raised from; None where no program acts on it."""
        source = self.__cause__
        if isinstance(source, WattdockError):
            return self._cause or source.cause
        by_class = Cause.MALFORMED if isinstance(source, ValueError) else self.usual_cause
        by_errno = ERRNO_CAUSES.get(source.errno or 0) if isinstance(source, OSError) else None
        return self._cause or by_errno or by_class

    def at(self, place: object) -> WattdockError:
        """Return the error with the place where it was met, in the class of its exit code."""
        return error_kind(self.exit_code)(f"{place}: {self.what}", self.remedy, cause=self.cause)

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def error_kind(exit_code: int, *, otherwise: type[WattdockError] = WattdockError) -> type[WattdockError]:
    """Return the class of the errors that end a command with this code; `otherwise` for a code that none has."""
    return next((kind for kind in WattdockError.__subclasses__() if kind.exit_code == exit_code), otherwise)


@contextmanager
def os_errors_as(kind: type[WattdockError], what: str, remedy: str) -> Iterator[None]:
    """Raise an OSError inside the block as another kind of error, with the system's words behind `what`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}", remedy) from error


class ConfigError(WattdockError):
    """What a person wrote, in a file or on the command line, is wrong."""

    exit_code = ExitCode.CONFIG


class PreflightError(WattdockError):
    """This machine cannot do what was asked; found before anything was started."""

    exit_code = ExitCode.PREFLIGHT


class LaunchError(WattdockError):
    """The runner did not start."""

    exit_code = ExitCode.LAUNCH


class RunnerError(WattdockError):
    """The runner started, then failed, hung or died."""

    exit_code = ExitCode.RUNNER


class MeterError(WattdockError):
    """Energy could not be read, or what was read cannot be trusted."""

    exit_code = ExitCode.METER
    usual_cause = Cause.NOT_METERED


class ClockError(MeterError):
    """Runner and host do not share a clock, so spans have no energy."""

    usual_cause = Cause.OTHER_CLOCK


class StoreError(WattdockError):
    """A result could not be written or read."""

    exit_code = ExitCode.STORE


class UnknownArchitectureError(Exception):
    """A model's architecture is not known here; the message is the reason a result gives."""

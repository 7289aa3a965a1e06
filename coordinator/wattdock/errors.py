"""Every error a user can meet, and the exit code each one ends the command with.

    WattdockError
    ├── ConfigError      2  what a person wrote is wrong
    ├── PreflightError   3  this machine cannot do what was asked
    ├── LaunchError      4  the runner did not start
    ├── RunnerError      5  the runner started and failed
    ├── MeterError       6  energy could not be read, or cannot be trusted
    │   └── ClockError      runner and host do not share a clock
    └── StoreError       7  the result could not be written or read

A message holds the value that was seen and what to do next, in one line.
"""

from __future__ import annotations

from enum import IntEnum

from wattdock.secrets import withheld


class ExitCode(IntEnum):
    """What the process ends with; documented in README and stable."""

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


class WattdockError(Exception):
    """Base of all errors that a user can meet; its message holds no secret, whoever worded it."""

    exit_code = ExitCode.BUG

    def __str__(self) -> str:
        return withheld(super().__str__(), keep_paths=True)


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


class ClockError(MeterError):
    """Runner and host do not share a clock, so spans have no energy."""


class StoreError(WattdockError):
    """A result could not be written or read."""

    exit_code = ExitCode.STORE


class UnknownArchitectureError(Exception):
    """A model's architecture is not known here; the message is the reason a result gives."""

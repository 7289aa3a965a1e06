"""What a page may start: one experiment of a few settings, as the arguments of `wattdock run`.

A run is a command of its own, which outlives the page; no request names a file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from wattdock.errors import ConfigError
from wattdock.files import last_lines
from wattdock.inputs import presets
from wattdock.launch import backends
from wattdock.opening import open_regular

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "wattdock")
# The longest that a command may take whose output a page waits for.
ANSWER_TIMEOUT_S = 180
# How many of the runs that were started from here a page shows.
MOST_SHOWN = 5
MODEL = re.compile(r"(shape:)?[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
COUNT = Annotated[int, Field(ge=1, le=100_000)]


class Order(BaseModel):
    """One experiment.

    Attributes:
        gpus: UUIDs; without any the command chooses, or measures on the CPU where there is no GPU.
        input_tokens: Tokens of each synthetic prompt; None for the bundled prompts.
        min_duration_s: Shortest time of each pass.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    backend: str = "pytorch"
    model: Annotated[str, Field(max_length=200)] = "smollm2-135m-instruct"
    gpus: Annotated[list[Annotated[str, Field(pattern=r"^GPU-[\w-]{1,60}$")]], Field(max_length=64)] = []
    batch_size: Annotated[COUNT, Field(title="in flight")] = 4
    input_tokens: Annotated[COUNT | None, Field(title="prompt tokens")] = None
    max_output_tokens: Annotated[COUNT, Field(title="output tokens")] = 64
    min_duration_s: Annotated[float, Field(ge=0, le=3600, title="seconds of a pass")] = 10
    restarts: Annotated[int, Field(ge=1, le=20)] = 1

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str) -> str:
        if backend not in backends():
            raise ValueError(f"there are {', '.join(backends())}")
        return backend

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str) -> str:
        if not MODEL.fullmatch(model):
            raise ValueError("a name, shape:NAME or a hub's id; no folder can be named here")
        return model

    def flags(self) -> list[str]:
        """Return the settings as `wattdock run` takes them."""
        prompts = "synthetic" if self.input_tokens else ""
        values = self.model_dump() | {"gpus": ",".join(self.gpus), "prompts": prompts}
        given = {name.replace("_", "-"): value for name, value in values.items() if value}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def choices() -> dict[str, Any]:
    """Return what can be chosen, whether or not it would run here."""
    return {
        "backends": backends(),
        "models": ["smollm2-135m-instruct", *(f"shape:{name}" for name in presets())],
        "defaults": Order().model_dump(),
    }


def output_of(words: list[str], *, pass_fds: tuple[int, ...] = ()) -> str:
    """Return what a wattdock command prints, its errors too; it inherits these descriptors."""
    try:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            env=os.environ | {"NO_COLOR": "1"},
            pass_fds=pass_fds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"wattdock {words[0]} did not answer within {ANSWER_TIMEOUT_S} s"
    return done.stdout


@dataclass
class StartedRun:
    """A run that was started from here; what it prints goes into `log`."""

    label: str
    process: subprocess.Popen[bytes]
    log: Path

    def __str__(self) -> str:
        """What became of it; its last line where it failed."""
        code = self.process.poll()
        if code:
            return f"{self.label}: {last_lines(self.log, 1)} (exit code {code}; {self.log})"
        return f"{self.label}: {'running' if code is None else 'done'}"


class StartedRuns:
    """Runs that were started from here, the latest; they go on when this process ends.

    Args:
        cpus: Those that a run may use; this process keeps to fewer.
    """

    def __init__(self, output_dir: Path, cpus: set[int]) -> None:
        self._output_dir, self._cpus = output_dir, cpus
        self.latest: deque[StartedRun] = deque(maxlen=MOST_SHOWN)

    def start(self, order: Order) -> None:
        """Start `wattdock run` in a session of its own; what it prints goes into a file in the folder of results.

        Raises:
            ConfigError: The folder of results cannot be written to.
        """
        at = f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
        log = self._output_dir / f"serve-{at}.log"
        # The child inherits the CPUs of this thread.
        kept = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, self._cpus)
            self._output_dir.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                process = subprocess.Popen(
                    [*COMMAND, "run", *order.flags(), "--output-dir", str(self._output_dir.absolute())],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=dict(os.environ),
                )
        except OSError as error:
            raise ConfigError(
                f"cannot write {log}: {error.strerror}", "choose another folder with --output-dir"
            ) from error
        finally:
            os.sched_setaffinity(0, kept)
        label = f"{at}: {order.backend} {order.model}, {order.batch_size} in flight"
        self.latest.append(StartedRun(label, process, log))

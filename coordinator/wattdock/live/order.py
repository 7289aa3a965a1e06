"""What a page may ask for: one experiment of a few settings, as the arguments of `wattdock plan` and `run`.

Whatever is asked runs as a command of its own, which outlives the page; no file is named by a request.
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

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from wattdock.errors import ConfigError
from wattdock.files import last_lines
from wattdock.inputs import presets
from wattdock.launch import backends
from wattdock.opening import open_regular

if TYPE_CHECKING:
    from pathlib import Path

# A plan asks the container engine and reads the model's configuration.
PLAN_TIMEOUT_S = 180
# Of runs that were started from here.
MOST_SHOWN = 5
MODEL = re.compile(r"(shape:)?[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
COUNT = Annotated[int, Field(ge=1, le=100_000)]


def _named(model: str) -> str:
    if not MODEL.fullmatch(model):
        raise ValueError("a name, shape:NAME or a hub's id; no folder can be named here")
    return model


def _known(backend: str) -> str:
    if backend not in backends():
        raise ValueError(f"there are {', '.join(backends())}")
    return backend


class Order(BaseModel):
    """One experiment.

    Attributes:
        gpus: UUIDs; without any the command chooses, or measures on the CPU where there is no GPU.
        input_tokens: Of each synthetic prompt; None for the bundled prompts.
        min_duration_s: Of each pass.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    backend: Annotated[str, AfterValidator(_known)] = "pytorch"
    model: Annotated[str, AfterValidator(_named), Field(max_length=200)] = "smollm2-135m-instruct"
    gpus: Annotated[list[Annotated[str, Field(pattern=r"^GPU-[\w-]{1,60}$")]], Field(max_length=64)] = []
    batch_size: Annotated[COUNT, Field(title="in flight")] = 4
    input_tokens: Annotated[COUNT | None, Field(title="prompt tokens")] = None
    max_output_tokens: Annotated[COUNT, Field(title="output tokens")] = 64
    min_duration_s: Annotated[float, Field(ge=0, le=3600, title="seconds of a pass")] = 10
    restarts: Annotated[int, Field(ge=1, le=20)] = 1

    def flags(self) -> list[str]:
        """Return the settings as `wattdock run` takes them."""
        prompts = "synthetic" if self.input_tokens else ""
        values = self.model_dump() | {"gpus": ",".join(self.gpus), "prompts": prompts}
        given = {name.replace("_", "-"): value for name, value in values.items() if value}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def estimate(self) -> list[str]:
        """Return the arguments of `wattdock estimate` for it."""
        context = (self.input_tokens or 512) + self.max_output_tokens
        name = self.model.removeprefix("shape:")
        return [name, "--backend", self.backend, "--batch-size", str(self.batch_size), "--context", str(context)]


def choices() -> dict[str, Any]:
    """Return what can be chosen, whether or not it would run here."""
    return {
        "backends": backends(),
        "models": ["smollm2-135m-instruct", *(f"shape:{name}" for name in presets())],
        "defaults": Order().model_dump(),
    }


def ask(words: list[str], *, columns: int = 110, pass_fds: tuple[int, ...] = ()) -> str:
    """Return what a wattdock command, which has these descriptors, prints in so many columns; its errors, too."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "wattdock", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PLAN_TIMEOUT_S,
            env=os.environ | {"COLUMNS": str(columns), "NO_COLOR": "1"},
            pass_fds=pass_fds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"wattdock {words[0]} did not answer within {PLAN_TIMEOUT_S} s"
    return done.stdout


@dataclass
class Started:
    """A run that was started from here, in words, and what it printed goes into `log`."""

    what: str
    process: subprocess.Popen[bytes]
    log: Path
    _outcome: str = ""

    def outcome(self) -> str:
        """Return what became of it; its last line where it failed."""
        code = self.process.poll()
        if code is not None and not self._outcome:
            said = last_lines(self.log, 1) if code else ""
            self._outcome = f"{said} (exit code {code}; {self.log})" if code else "done"
        return self._outcome or "running"


class Orders:
    """Runs that were started from here; they go on when this process ends.

    Args:
        cpus: Those that a run may use; this process keeps to fewer.
    """

    def __init__(self, output_dir: Path, cpus: set[int]) -> None:
        self._output_dir, self._cpus = output_dir, cpus
        self._started: deque[Started] = deque(maxlen=MOST_SHOWN)

    def start(self, order: Order) -> None:
        """Start `wattdock run` in a session of its own; what it prints goes into a file in the folder of results.

        Raises:
            ConfigError: The folder of results cannot be written to.
        """
        log = self._output_dir / f"serve-{datetime.now(UTC):%Y%m%dT%H%M%S-%f}.log"
        # Of this thread, which the child takes after.
        kept = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, self._cpus)
            self._output_dir.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                words = [sys.executable, "-P", "-m", "wattdock", "run", *order.flags(), "--output-dir"]
                process = subprocess.Popen(
                    [*words, str(self._output_dir.absolute())],
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
        what = f"{order.backend} {order.model}, {order.batch_size} in flight"
        self._started.append(Started(f"{log.stem.removeprefix('serve-')}: {what}", process, log))

    def lines(self) -> list[str]:
        """Return what became of the latest, a line each."""
        return [f"{started.what}: {started.outcome()}" for started in self._started]

"""A runner in a container that was started: whether it lives, how it ended, and its end by its container's id.

Starts nothing; knows nothing of how a container is described.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.errors import LaunchError
from wattdock.files import TAIL_LINES, last_lines
from wattdock.launch.container import MODEL_FOLDER
from wattdock.launch.protocol import STOP_GRACE_S, STOPPED, LaunchedRunner
from wattdock.launch.socket_folder import SOCKET_NAME

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    import docker
    from docker.models.containers import Container

KILL_WAIT_S = 30.0
SIGNAL_BASE = 128
# What engines say, and what to do about it.
REMEDIES = {
    "could not select device driver": "the engine has no NVIDIA Container Toolkit: install nvidia-container-toolkit "
    "and restart the engine, or use --launcher process",
    "no space left on device": "make room under the engine's data folder (`docker system df` shows what fills it)",
    "Error while fetching server API version": "the engine does not answer any more; see that it runs",
    "No such image": "the image went away meanwhile; make it again with `make images`",
}


class RunnerContainer(LaunchedRunner):
    """A runner that was started in a container.

    Attributes:
        id: The container's; it is stopped and killed by this, never by a name.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        container: Container,
        keeper: subprocess.Popen[bytes],
        folder: Path,
        log_path: Path,
    ) -> None:
        self._client, self._container, self._keeper = client, container, keeper
        self._folder, self._log_path = folder, log_path
        self._exit_reason: str | None = None
        self._forced = self._asked = False
        self.id = str(container.id)
        self.address = f"unix:{folder / SOCKET_NAME}"

    @property
    def description(self) -> str:
        """What it is on this host, for people."""
        return f"container {self.id[:12]}"

    def model_path(self, on_host: Path) -> Path:  # noqa: ARG002
        """Return where the runner finds the model's folder: always in one place."""
        return Path(MODEL_FOLDER)

    def pids(self) -> frozenset[int]:
        """Return all processes that belong to it now, as this host numbers them; empty where the engine does not tell.

        Source: Docker Engine API, GET /containers/{id}/top, whose ids are the engine's host's.
        """
        from docker.errors import DockerException

        with contextlib.suppress(DockerException, OSError):
            return frozenset(int(row[0]) for row in self._container.top(ps_args="-eo pid")["Processes"])
        return frozenset()

    def exit_reason(self) -> str | None:
        """How it ended, such as "exited with code 1"; None while it runs, and while the engine does not tell."""
        if self._exit_reason is None and (state := self._state()) is not None and not state.get("Running"):
            self._finish(self._how_it_ended(state))
        return self._exit_reason

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of its log; empty where there is none."""
        from docker.errors import DockerException

        if self._exit_reason is None:
            with contextlib.suppress(DockerException, OSError):
                return bytes(self._container.logs(tail=lines)).decode(errors="replace").rstrip("\n")
        return last_lines(self._log_path, lines)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, end it by force after `grace_s` seconds, and return when nothing of it is left.

        Raises:
            LaunchError: Even force did not end it, or the engine does not answer.
        """
        from docker.errors import DockerException

        if not self.alive():
            return
        self._asked = True
        try:
            if grace_s > 0:
                self._signal(signal.SIGTERM)
                # One that is stopped would not hear it.
                self._signal(signal.SIGCONT)
            if not self._ended_within(grace_s):
                self._forced = True
                self._signal(signal.SIGKILL)
                self._ended_within(KILL_WAIT_S)
        except (DockerException, OSError) as error:
            raise LaunchError(
                f"{self.description} cannot be stopped: {explained(error)}; see `wattdock reap`"
            ) from error
        if self.alive():
            raise LaunchError(
                f"{self.description} does not end, even by SIGKILL (waited {KILL_WAIT_S:.0f} s): a driver may hold it, "
                "or the engine does not answer; see `wattdock reap`"
            )

    def _state(self) -> Mapping[str, Any] | None:
        """Return the engine's view of it; None where the engine does not answer."""
        from docker.errors import DockerException, NotFound

        try:
            self._container.reload()
        except NotFound:
            return {"Running": False, "Removed": True}
        except (DockerException, OSError):
            return None
        state: Mapping[str, Any] = self._container.attrs["State"]
        return state

    def _how_it_ended(self, state: Mapping[str, Any]) -> str:
        if self._forced:
            return "did not stop in time and was killed"
        if state.get("Removed"):
            return "its container was removed by somebody else"
        code = int(state.get("ExitCode", 0))
        if state.get("OOMKilled"):
            return f"ran out of memory and was killed by the kernel (exit code {code}); raise container.memory_gb"
        if self._asked:
            return STOPPED
        if code == SIGNAL_BASE + signal.SIGKILL:
            return "killed by SIGKILL (out of the host's memory, or by somebody)"
        if code > SIGNAL_BASE and code - SIGNAL_BASE in set(signal.Signals):
            return f"killed by {signal.Signals(code - SIGNAL_BASE).name}"
        return f"exited with code {code}"

    def _signal(self, number: signal.Signals) -> None:
        from docker.errors import APIError

        # An engine refuses to signal a container that has just ended.
        with contextlib.suppress(APIError):
            self._container.kill(signal=int(number))

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._container.wait(timeout=max(seconds, 0.01))
        except OSError:
            # A time-out, or an engine that has nothing to say any more: its state tells.
            return False
        return True

    def _finish(self, reason: str) -> None:
        """Keep its log, remove it and its socket's folder, and let go of the engine."""
        from docker.errors import DockerException

        with contextlib.suppress(DockerException, OSError), self._log_path.open("ab") as log:
            # Not all at once: it may be tens of megabytes.
            for chunk in self._container.logs(stream=True):
                log.write(chunk)
        with contextlib.suppress(DockerException, OSError):
            self._container.remove(force=True, v=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(BrokenPipeError):
            self._keeper.communicate(b"done\n")
        self._client.close()
        self._exit_reason = reason


def explained(error: Exception) -> str:
    """Return what an engine said, in one line, with what to do about it where that is known."""
    said = " ".join(str(getattr(error, "explanation", None) or error).split())
    return next((f"{said}; {remedy}" for sign, remedy in REMEDIES.items() if sign in said), said)

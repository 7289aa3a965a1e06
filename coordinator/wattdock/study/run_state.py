"""The state of a run, from its events: progress, speed and power. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.study import events
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

# How many parts of the run and failures a state keeps: the latest.
MOST_PARTS, MOST_LINES = 100, 20
# How many GPUs, and characters of a UUID or part's name, are kept: another user's run may send any number.
MOST_GPUS, MOST_NAME = 32, 64


@dataclass(frozen=True)
class Part:
    """A pass, a warm-up or an idle span, in seconds as `RunState.on` is given them; `end_s` is None until it ends."""

    name: str
    begin_s: float
    end_s: float | None = None


@dataclass
class RunState:
    """A run so far.

    Attributes:
        doing: What it does now, in words.
        stage: Name of the pass that is under way; empty between passes.
        passes_left, passes: Measured passes of the study; None until they are known.
        elapsed_s, output_tokens: Of the pass under way, or of the last one.
        gpus: UUIDs of the GPUs that the runner has.
        watts: Latest power of every GPU that is metered, by UUID; None where it is unknown.
        joules: Energy of the runner's GPUs, from the pass's beginning to its latest heartbeat, by power at heartbeats:
            provisional. None once power was unknown.
        unit: What `output_tokens` counts.
        share: Finished share of the pass, 0 to 1; None where its end cannot be told.
        parts: Passes and idle spans, the latest last.
        stored: Results so far, by status.
        stopping: Whether it stops after the pass that is under way.
    """

    experiment: str = ""
    doing: str = ""
    stage: str = ""
    restart: int = 0
    restarts: int = 0
    passes_left: int | None = None
    passes: int | None = None
    time_left: str = ""
    elapsed_s: float = 0.0
    output_tokens: int = 0
    unit: str = "tokens"
    gpus: tuple[str, ...] = ()
    watts: Mapping[str, float | None] = field(default_factory=dict)
    joules: float | None = None
    share: float | None = None
    parts: deque[Part] = field(default_factory=lambda: deque(maxlen=MOST_PARTS))
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    stored: dict[str, int] = field(default_factory=dict)
    stopping: bool = False
    limits: events.PassStarted | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens of the pass ÷ its seconds so far; None before the first."""
        return self.output_tokens / self.elapsed_s if self.output_tokens and self.elapsed_s > 0 else None

    @property
    def power_w(self) -> float | None:
        """Latest power of the runner's GPUs together; None where it is unknown of one, or there is none."""
        return known_sum(self.watts.get(uuid) for uuid in self.gpus) if self.gpus else None

    @property
    def joules_per_token(self) -> float | None:
        """Joules of the pass so far ÷ its output tokens: provisional, as `joules` is."""
        return self.joules / self.output_tokens if self.joules and self.output_tokens else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the pass ends, if it goes on as it did; None where that cannot be told."""
        return self.elapsed_s * (1 - self.share) / self.share if self.share else None

    def on(self, event: events.Event, at_s: float) -> None:
        """Update the state by the next event, which happened at `at_s` seconds of any clock."""
        match event:
            case events.StudyStarted() | events.RestartStarted():
                self.passes_left, self.passes, self.time_left = event.passes_left, event.passes, event.time_left
                if isinstance(event, events.RestartStarted):
                    self.experiment, self.restart, self.restarts = event.experiment, event.restart, event.restarts
                    self.gpus = tuple(uuid[:MOST_NAME] for uuid in event.gpus[:MOST_GPUS])
                    self._begin("", "begins", at_s)
                    self.elapsed_s, self.output_tokens, self.joules = 0.0, 0, None
            case events.Loading():
                self._begin("", event.stage or f"loading {event.model}", at_s)
            case events.IdleStarted():
                self._begin(event.span, f"{event.span}, {event.duration_s:g} s without work", at_s)
            case events.PassStarted():
                self._begin(event.stage, event.stage, at_s)
                self.stage, self.limits, self.share = event.stage, event, None
                self.elapsed_s, self.output_tokens, self.joules = 0.0, 0, 0.0
            case events.TokensSeen():
                self._beat(event)
            case events.StopAsked():
                self.stopping = True
            case events.PassFinished():
                self._begin("", f"{event.stage} measured", at_s)
                self.elapsed_s, self.output_tokens = event.duration_s, event.output_tokens
                # The estimate covered the earlier pass count.
                self.passes_left, self.time_left = max(0, (self.passes_left or 0) - 1), ""
            case events.ExperimentFailed():
                self._begin("", f"failed in {event.stage}", at_s)
                self.failures.append(f"{event.experiment}: {event.message}")
            case events.ResultStored():
                self._begin("", "result stored", at_s)
                if event.status in self.stored or len(self.stored) < MOST_LINES:
                    self.stored[event.status] = self.stored.get(event.status, 0) + 1

    def _begin(self, part: str, doing: str, at_s: float) -> None:
        """End the part that is under way, and begin another one if it has a name."""
        if self.parts and self.parts[-1].end_s is None:
            last = self.parts.pop()
            self.parts.append(Part(last.name, last.begin_s, at_s))
        if part:
            self.parts.append(Part(part[:MOST_NAME], at_s))
        self.doing, self.stage = doing, ""
        self.share, self.watts = None, {}

    def _beat(self, beat: events.TokensSeen) -> None:
        self.watts = {uuid[:MOST_NAME]: watts for uuid, watts in itertools.islice(beat.watts.items(), MOST_GPUS)}
        if self.joules is not None and self.power_w is not None:
            self.joules += self.power_w * max(0.0, beat.elapsed_s - self.elapsed_s)
        else:
            self.joules = None
        self.stage, self.elapsed_s, self.output_tokens = beat.stage, beat.elapsed_s, beat.output_tokens
        self.unit = beat.unit[:MOST_NAME]
        limits = self.limits
        done = [(beat.elapsed_s, limits.least_s), (beat.output_tokens, limits.most_tokens)] if limits else []
        # Sequences that end early never reach the limit of tokens.
        shares = [min(1.0, so_far / limit) for so_far, limit in done if limit]
        self.share = min(shares) if shares else None

"""What was measured of an experiment: the one form that all figures are computed from. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from wattdock.analysis.joules import Joules, SpanJoules, ratio
from wattdock.analysis.occupancy import NoWindowError, tokens_in
from wattdock.analysis.pass_energy import WindowFigure
from wattdock.analysis.windows import WINDOWS, WindowName, WindowSummary, marked
from wattdock.metering import Span
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.records import EnvironmentSnapshot, PassRecord, RequestRecord, RestartRecord
    from wattdock.values import EnergyBoundary

DIFFERENT_GPUS = "restarts used different GPUs"
DIFFERENT_BOUNDARIES = "energy counters cover the GPU board in one case and the module in another"


@dataclass(frozen=True)
class Measured:
    """An experiment's settings, its restarts, its GPUs, and the energy of any span on these.

    Attributes:
        used: UUIDs of the GPUs that held a part of the model.
        bystanders: UUIDs of the host's other GPUs.
        boundary: What the joules of the GPUs used cover.
        limit_w: Sum of the power limits of the GPUs used; None where one is unknown.
    """

    config: ExperimentConfig
    restarts: Sequence[RestartRecord]
    used: tuple[str, ...] = ()
    bystanders: tuple[str, ...] = ()
    energy: SpanJoules = field(default_factory=SpanJoules)
    boundary: EnergyBoundary = "gpu_boards"
    limit_w: float | None = None

    @classmethod
    def of(
        cls, config: ExperimentConfig, restarts: Sequence[RestartRecord], environment: EnvironmentSnapshot
    ) -> Measured:
        """Return what these restarts measured; no energy is summed over different GPUs or different boundaries.

        An engine that places a model by itself may take other GPUs in another restart.
        """
        placements = {
            frozenset(restart.environment.gpu_uuids) for restart in restarts if restart.passes and restart.environment
        }
        used = tuple(environment.gpu_uuids)
        gpus = [restart.gpus[uuid] for restart in restarts for uuid in used if uuid in restart.gpus]
        boundaries = {gpu.boundary for gpu in gpus}
        different = DIFFERENT_GPUS if len(placements) > 1 else DIFFERENT_BOUNDARIES if len(boundaries) > 1 else None
        return cls(
            config,
            restarts,
            used,
            tuple(gpu.uuid for gpu in environment.host_gpus if gpu.uuid not in used),
            SpanJoules(different),
            "module" if "module" in boundaries else "gpu_boards",
            known_sum(gpu.power_limit_w for gpu in environment.used_gpus),
        )

    @cached_property
    def passes(self) -> list[tuple[RestartRecord, PassRecord]]:
        """Every measured pass beside its restart, in order."""
        return [(restart, run_pass) for restart in self.restarts for run_pass in restart.passes]

    @cached_property
    def pass_records(self) -> list[PassRecord]:
        """Every measured pass, in order."""
        return [run_pass for _, run_pass in self.passes]

    @property
    def passes_s(self) -> float:
        """Duration of all measured passes together, s."""
        return sum(run_pass.span.duration_s for run_pass in self.pass_records)

    @cached_property
    def windows(self) -> WindowSummary:
        """Every definition's figure for every pass, and which definition is the headline's; empty without a pass."""
        names: list[WindowName] = ["drained", "steady_state"]
        if command := self.config.command:
            names = ["drained", "marked"] if command.work.within else ["drained"]
        figures = {name: [self._figure(name, *of_pass) for of_pass in self.passes] for name in names}
        # Unknown where a pass has no such window, or no energy.
        per_token = {
            name: ratio(known_sum(each.total_j for each in found), sum(each.output_tokens or 0 for each in found))
            for name, found in figures.items()
        }
        # Whole passes of rounds are steady without a lead-in, too.
        cut = self.config.warmup.profile == "lead-in" or not self.config.workload.has_rounds
        is_last = command or (cut and all(figure.output_tokens for figure in figures["steady_state"]))
        return WindowSummary(
            headline=names[-1] if is_last else "drained",
            measured_per_output_token_j=per_token,
            passes=list(chain(*figures.values())),
        )

    @property
    def headline(self) -> list[WindowFigure]:
        """The window of each pass that headline figures are of, in order."""
        return self.windows.of_headline()

    def requests_with(self, at_ns: Callable[[RequestRecord], int | None]) -> list[RequestRecord]:
        """Return the requests of all passes with an instant, `at_ns` of each, in the headline's window."""
        parts = zip(self.pass_records, self.headline, strict=True)
        return [request for run_pass, part in parts for request in run_pass.requests if part.holds(at_ns(request))]

    @property
    def counted_spans(self) -> list[Span]:
        """The part of each pass that conditions and `net_j` are of: a command's spans that count, else the whole."""
        spans = [run_pass.span for run_pass in self.pass_records]
        if self.config.command and self.config.command.work.within:
            for number, run_pass in enumerate(self.pass_records):
                with suppress(NoWindowError):
                    spans[number] = Span("marked", *marked(run_pass, self.config))
        return spans

    def _figure(self, name: str, restart: RestartRecord, run_pass: PassRecord) -> WindowFigure:
        where = {"window": name, "restart": restart.restart, "pass_index": run_pass.index}
        try:
            start_ns, end_ns = WINDOWS[name](run_pass, self.config)
            if end_ns <= start_ns:
                raise NoWindowError("it ends before it begins")
        except NoWindowError as error:
            return WindowFigure(**where, reason=str(error))
        span = Span(name, start_ns, end_ns)
        tokens = run_pass.output_tokens if name == "drained" else int(tokens_in(run_pass, [start_ns, end_ns])[0])
        joules = self.energy_of(restart, span)
        return WindowFigure(
            **where,
            start_ns=start_ns,
            end_ns=end_ns,
            duration_s=span.duration_s,
            output_tokens=tokens,
            total_j=joules.total_j,
            timing_j=joules.timing_j,
            measured_per_output_token_j=ratio(joules.total_j, tokens),
            reason=joules.reason,
        )

    def energy_of(
        self, restart: RestartRecord, span: Span, uuids: Sequence[str] | None = None, *, hbm: bool = False
    ) -> Joules:
        """Return the energy of a span of a restart on the GPUs `uuids`, or else on those used.

        Args:
            hbm: Only the part that the GPUs' memory used.
        """
        return self.energy.of(restart.timeline, span, self.used if uuids is None else uuids, hbm=hbm)

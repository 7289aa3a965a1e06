"""Stored results as OpenTelemetry metrics over HTTP, by its conventions' names for generative AI where they have one.

Source: OpenTelemetry semantic conventions, "Semantic conventions for generative AI metrics". Energy has no name there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wattdock import __version__
from wattdock.clock import NS_PER_S
from wattdock.errors import PreflightError, WattdockError
from wattdock.store import RESULT, Row, StoredResult, load_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.util.types import AnyValue

TIMEOUT_S = 10
# Bounds that the conventions advise: of seconds of requests, of seconds per token, of tokens.
REQUEST_S = [0.01 * 2**power for power in range(14)]
TOKEN_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
TOKENS = [float(4**power) for power in range(14)]
HISTOGRAMS = {
    "gen_ai.server.time_to_first_token": ("s", REQUEST_S),
    "gen_ai.server.time_per_output_token": ("s", TOKEN_S),
    "gen_ai.server.request.duration": ("s", REQUEST_S),
    "gen_ai.client.token.usage": ("{token}", TOKENS),
}
# Columns of the table of results.
GAUGES = {
    "wattdock.energy.per_output_token": ("J/{token}", "energy_per_output_token_j"),
    "wattdock.energy.per_request": ("J/{request}", "energy_per_request_j"),
    "wattdock.power.mean": ("W", "mean_power_w"),
    "wattdock.output_tokens.rate": ("{token}/s", "output_tokens_per_s"),
}


class Sender:
    """Sends each result that is stored from now on, once.

    Raises:
        PreflightError: OpenTelemetry's SDK is not installed.
    """

    def __init__(self, url: str, output_dir: Path, say: Callable[[str], None]) -> None:
        try:
            import opentelemetry.exporter.otlp.proto.http.metric_exporter
            import opentelemetry.sdk.metrics  # noqa: F401
        except ImportError as error:
            raise PreflightError(f"--otlp: {error}; pip install 'wattdock[otlp]'") from error
        self._url, self._output_dir, self._say, self._changed_ns = url, output_dir, say, 0
        self._seen = set(self._stored())

    def send_new(self) -> None:
        """Send what was stored since; what cannot be sent is said, and not tried again."""
        for folder in self._stored() if self._has_changed() else ():
            if folder not in self._seen:
                self._seen.add(folder)
                try:
                    send(StoredResult(folder, load_result(folder)), self._url)
                except WattdockError as error:
                    self._say(f"not sent: {error}")

    def _has_changed(self) -> bool:
        """Whether a folder was added since the last look, which costs less than to list thousands."""
        with suppress(OSError):
            before, self._changed_ns = self._changed_ns, self._output_dir.stat().st_mtime_ns
            return self._changed_ns != before
        return False

    def _stored(self) -> list[Path]:
        return sorted(file.parent for file in self._output_dir.glob(f"2*/{RESULT}"))


def send(stored: StoredResult, url: str) -> None:
    """Send one result.

    Raises:
        StoreError: A restart's requests cannot be read.
        PreflightError: Nobody takes it at `url`.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource

    row, reader = Row.of(stored), InMemoryMetricReader()
    resource = Resource.create(
        {"service.name": "wattdock", "service.version": __version__, "wattdock.study": row.study_id or ""}
    )
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    meter = provider.get_meter("wattdock", __version__)
    common: dict[str, AnyValue] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": row.backend,
        "gen_ai.request.model": row.model or "",
        "wattdock.experiment": row.name or "",
        "wattdock.result": stored.folder.name,
        "wattdock.publishable": bool(row.publishable),
    }
    histograms = {
        name: meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)
        for name, (unit, bounds) in HISTOGRAMS.items()
    }
    for request in stored.table("requests").to_pylist():
        for name, value, more in _of_request(request):
            histograms[name].record(value, common | more)
    for name, (unit, column) in GAUGES.items():
        if (figure := getattr(row, column)) is not None:
            meter.create_gauge(name, unit).set(figure, common)
    data = reader.get_metrics_data()
    exporter = OTLPMetricExporter(endpoint=url, timeout=TIMEOUT_S)
    if data is not None and exporter.export(data, timeout_millis=TIMEOUT_S * 1000).name != "SUCCESS":
        raise PreflightError(f"{stored.folder.name}: nobody takes metrics at {url}")


def _of_request(request: dict[str, Any]) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Yield each metric of a request with its value and what tells it apart; none of what is unknown."""
    submitted, first, finished = (request[f"{name}_ns"] for name in ("submitted", "first_token", "finished"))
    for kind, column in (("input", "prompt_tokens"), ("output", "output_tokens")):
        if request[column] is not None:
            yield "gen_ai.client.token.usage", request[column], {"gen_ai.token.type": kind}
    if submitted is None or finished is None:
        return
    yield "gen_ai.server.request.duration", (finished - submitted) / NS_PER_S, {}
    if first is not None:
        yield "gen_ai.server.time_to_first_token", (first - submitted) / NS_PER_S, {}
        if (request["output_tokens"] or 0) > 1:
            after_first = request["output_tokens"] - 1
            yield "gen_ai.server.time_per_output_token", (finished - first) / NS_PER_S / after_first, {}

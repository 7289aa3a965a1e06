"""Results sent to a collector as OpenTelemetry metrics, by the real server after a real run."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, on_gpus
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from served import GPUS, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from command import Command

PASS = (*SMALL, "--gpus", "0", "--set", "fake.step_s=0.05", "--set", "warmup.passes=0", "--max-output-tokens", "20")


@pytest.fixture
def collector() -> Iterator[tuple[str, Queue[Any]]]:
    """A collector's address, and what it receives."""
    received: Queue[Any] = Queue()

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_packed = self.headers.get("content-encoding") == "gzip"
            received.put(ExportMetricsServiceRequest.FromString(gzip.decompress(body) if is_packed else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Take) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", received
        server.shutdown()
        thread.join()


def test_a_new_result_is_sent_once_by_the_conventions_names(
    wattdock: Command, collector: tuple[str, Queue[Any]]
) -> None:
    """Each request and token counts, and J/token is the result's; what was stored before is not sent."""
    url, received = collector
    env = on_gpus(wattdock, *GPUS)
    wattdock.measured(*PASS, env=env)
    with served(wattdock, "--port", "0", "--otlp", url, env=env):
        result = wattdock.measured(*PASS, env=env)
        [resource] = received.get(timeout=60).resource_metrics
    assert received.empty()
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    durations = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert sum(point.count for point in durations) == result["performance"]["requests"]
    tokens = metrics["gen_ai.client.token.usage"].histogram.data_points
    assert sum(point.sum for point in tokens) == (
        result["performance"]["prompt_tokens"] + result["performance"]["output_tokens"]
    )
    [per_token] = metrics["wattdock.energy.per_output_token"].gauge.data_points
    assert per_token.as_double == result["energy"]["energy_per_output_token_j"]
    assert metrics["wattdock.energy.per_output_token"].unit == "J/{token}"
    labels = {pair.key: pair.value.string_value for pair in durations[0].attributes}
    assert (labels["gen_ai.provider.name"], labels["gen_ai.request.model"]) == ("fake", "shape:tiny-llama")

"""What Prometheus scrapes: power, energy and lease of each GPU, and each run, as of the latest look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from wattdock.live.feed import Feed

J_PER_MJ = 1e-3
# Key of a run in `Feed.now` → the metric and its description.
RUN_METRICS = {
    "output_tokens": (
        "wattdock_pass_output_tokens",
        "Output tokens, or units of a command, of the pass or warm-up so far.",
    ),
    "elapsed_s": ("wattdock_pass_elapsed_seconds", "Seconds since the pass or warm-up began."),
    "tokens_per_s": ("wattdock_pass_output_tokens_per_second", "Output tokens, or units, per second of the pass."),
    "joules_per_token": (
        "wattdock_pass_provisional_joules_per_output_token",
        "Joules per output token, or unit, of the pass so far, provisional.",
    ),
    "power_w": ("wattdock_run_power_watts", "Power of the GPUs that a run uses."),
    "passes_left": ("wattdock_run_passes_left", "Measured passes that the study has left."),
}


class FeedCollector(Collector):
    """Reads the feed when it is scraped, so that no GPU or run stays behind when it is gone."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all its values."""
        now = self._feed.now()
        names = ("gpu", "index", "name")
        power = GaugeMetricFamily("wattdock_gpu_power_watts", "Board power of a GPU now.", labels=names)
        energy = CounterMetricFamily("wattdock_gpu_energy_joules", "Energy of a GPU by its counter.", labels=names)
        leased = GaugeMetricFamily(
            "wattdock_gpu_leased", "1 for a GPU that a measurement leases.", labels=("gpu", "user", "study")
        )
        for gpu in now["gpus"]:
            labels = [gpu["uuid"], str(gpu["index"]), _label(gpu["name"])]
            if gpu.get("power_w") is not None:
                power.add_metric(labels, gpu["power_w"])
            if gpu.get("energy_mj") is not None:
                energy.add_metric(labels, gpu["energy_mj"] * J_PER_MJ)
            if gpu["holder"]:
                leased.add_metric([gpu["uuid"], _label(gpu["user"] or ""), _label(gpu["study"] or "")], 1)
        yield from (power, energy, leased)
        for key, (name, description) in RUN_METRICS.items():
            family = GaugeMetricFamily(name, description, labels=("study", "experiment", "unit"))
            for run in now["runs"]:
                if run[key] is not None:
                    family.add_metric([_label(run[label]) for label in ("study", "experiment", "unit")], run[key])
            yield family


def exposition(feed: Feed) -> bytes:
    """Return everything in Prometheus's text format."""
    return generate_latest(FeedCollector(feed))


def _label(value: object) -> str:
    """Return a label's text; of a name that is no Unicode, what can be written."""
    return str(value).encode(errors="backslashreplace").decode()

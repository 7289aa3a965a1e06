"""What Prometheus scrapes: each GPU, who leases it, and each run, as of the latest look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from wattdock.live.feed import Feed

MHZ, MJ = 1e6, 1e-3
# What the page calls it → the metric, what it is, and how many of its unit one of the page's is.
GPU: dict[str, tuple[str, str, float]] = {
    "power_w": ("wattdock_gpu_power_watts", "Board power of a GPU now.", 1),
    "hbm_power_w": ("wattdock_gpu_hbm_power_watts", "Power of a GPU's memory, a part of the board's.", 1),
    "power_limit_w": ("wattdock_gpu_power_limit_watts", "Power limit of a GPU that is enforced.", 1),
    "memory_used_bytes": ("wattdock_gpu_memory_used_bytes", "Memory in use on a GPU.", 1),
    "vram_total_bytes": ("wattdock_gpu_memory_bytes", "Memory of a GPU.", 1),
    "temperature_c": ("wattdock_gpu_temperature_celsius", "Temperature of a GPU.", 1),
    "sm_clock_mhz": ("wattdock_gpu_sm_clock_hertz", "SM clock of a GPU.", MHZ),
    "busy_percent": (
        "wattdock_gpu_busy_ratio",
        "Share of the driver's last sampling period with a kernel running.",
        0.01,
    ),
}
GPU_COUNTERS: dict[str, tuple[str, str, float]] = {
    "energy_mj": ("wattdock_gpu_energy_joules", "Energy of a GPU by its own counter; read every ten seconds.", MJ),
}
RUN: dict[str, tuple[str, str, float]] = {
    "output_tokens": (
        "wattdock_pass_output_tokens",
        "Output tokens of the pass or warm-up under way, at most.",
        1,
    ),
    "elapsed_s": ("wattdock_pass_elapsed_seconds", "Seconds since the pass or warm-up began.", 1),
    "tokens_per_s": ("wattdock_pass_output_tokens_per_second", "Output tokens per second of it so far.", 1),
    "joules_per_token": (
        "wattdock_pass_provisional_joules_per_output_token",
        "Joules per output token of it so far, provisional.",
        1,
    ),
    "power_w": ("wattdock_run_power_watts", "Power of the GPUs that a run uses.", 1),
    "passes_left": ("wattdock_run_passes_left", "Measured passes that the study has left.", 1),
}


class FeedCollector(Collector):
    """Reads the feed when it is scraped, so that no GPU or run stays behind when it is gone."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all its values."""
        now = self._feed.now()
        gpu_labels = {"gpu": "uuid", "index": "index", "name": "name"}
        yield from _families(GPU, now["gpus"], gpu_labels)
        yield from _families(GPU_COUNTERS, now["gpus"], gpu_labels, CounterMetricFamily)
        leased = GaugeMetricFamily(
            "wattdock_gpu_leased", "1 for a GPU that a measurement leases.", labels=("gpu", "user", "study")
        )
        for gpu in now["gpus"]:
            if gpu["holder"]:
                leased.add_metric([gpu["uuid"], _label(gpu["user"] or ""), _label(gpu["study"] or "")], 1)
        yield leased
        yield from _families(RUN, now["runs"], {"study": "study", "experiment": "experiment"})
        yield InfoMetricFamily("wattdock", "What serves these metrics.", {"version": __version__})


def exposition(feed: Feed) -> bytes:
    """Return everything in Prometheus's text format."""
    return generate_latest(FeedCollector(feed))


def _label(value: object) -> str:
    """Return a label's text; of a name that is no Unicode, what can be written."""
    return str(value).encode(errors="backslashreplace").decode()


def _families(
    metrics: Mapping[str, tuple[str, str, float]],
    things: list[dict[str, Any]],
    labels: Mapping[str, str],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Iterator[Metric]:
    for value, (name, meaning, factor) in metrics.items():
        family = kind(name, meaning, labels=list(labels))
        for thing in things:
            if thing.get(value) is not None:
                family.add_metric([_label(thing[key]) for key in labels.values()], thing[value] * factor)
        yield family

"""Watching: the machine and the runs on it as a page of this machine, and for Prometheus.

In: a folder of results, NVML. Out: a `GpuSnapshot`; `live.server.serve`, which answers until Ctrl-C. The
page is in `assets`, plain HTML, style and script; it shows what `Feed.now` returns, and changes nothing.
Must not know: how anything is measured, what is stored. Runs are watched through their studies' folders.
"""

from wattdock.live.feed import Feed, GpuSnapshot

__all__ = ["Feed", "GpuSnapshot"]

"""Watching: the machine and the runs on it as a page of this machine, and for Prometheus.

In: a folder of results, NVML. Out: a `GpuSnapshot`; `live.server.serve`, which answers until Ctrl-C. The
page is in `assets`, plain HTML, style and script; it shows what `Feed.now` returns. What may be asked of it is an
`Order`.
Must not know: how anything is measured. Runs are watched through their studies' folders, and started as commands.
"""

from wattdock.live.feed import Feed, GpuSnapshot

__all__ = ["Feed", "GpuSnapshot"]

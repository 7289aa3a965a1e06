"""Watching: the machine and the runs on it as a page of this machine, and for Prometheus.

In: a folder of results, NVML. Out: `serve`, which answers until Ctrl-C. The page is in `assets`, plain HTML, style and
script; it shows what `Feed.now` returns, and can start what an `Order` holds.
Must not know: how anything is measured. Runs are watched through their studies' folders, and started as commands.
"""

from wattdock.live.server import serve

__all__ = ["serve"]

"""`wattdock serve`."""

from typing import Annotated

import typer

from wattdock.console.options import RESULTS, OutputDir
from wattdock.output import say


def serve(
    host: Annotated[str, typer.Option(help="Name or address of this machine to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8089,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Watch this machine in a browser: its GPUs and the runs under way.

    Metrics for Prometheus are under /metrics. Serves until Ctrl-C; the runs that it shows are not disturbed.
    """
    from wattdock.live.server import serve as serve_page

    serve_page(output_dir, host=host, port=port, say=say)

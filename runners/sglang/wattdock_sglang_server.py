"""SGLang's own HTTP server as a program: its arguments as JSON, then the port of the loopback it serves.

Otherwise as SGLang's command has it, whose command line has a form of its own for every type of value.

Source: sglang/launch_server.py.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Serve until a signal ends this process."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(ServerArgs(**json.loads(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2])))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


# SGLang's processes import this module again, under another name.
if __name__ == "__main__":
    main()

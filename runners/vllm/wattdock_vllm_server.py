"""vLLM's own HTTP server as a program: its engine's arguments as JSON, then the port of the loopback it serves.

Otherwise as vLLM's command has it, but that it logs no requests and tells cached prompt tokens.
"""

from __future__ import annotations

import json
import runpy
import sys

# The name of the model in requests.
MODEL = "model"


def main() -> None:
    """Serve until a signal ends this process."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    settings, port = json.loads(sys.argv[1]), sys.argv[2]
    # The command line has a form of its own for every type of value.
    AsyncEngineArgs.from_cli_args = classmethod(lambda arguments, _: arguments(**settings))
    sys.argv = ["vllm", "--host", "127.0.0.1", "--port", port, "--model", settings["model"]]
    sys.argv += ["--served-model-name", MODEL, "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


# vLLM's processes import this module again, under another name.
if __name__ == "__main__":
    main()

"""trtllm-serve as a program: the model's folder, then the port of the loopback it serves.

Otherwise as TensorRT-LLM's command has it: the engine's arguments as a file, over the command's own defaults. What is
in effect becomes a file, too, since no route tells it.

Source: function serve in tensorrt_llm/commands/serve.py, and the class that it calls PyTorchLLM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from wattdock_tensorrt import effective_engine_args

# In the working folder, which is the runner's own. JSON is YAML.
SETTINGS, EFFECTIVE = "trtllm-serve.yaml", "trtllm-serve.json"


def main() -> None:
    """Serve until a signal ends this process."""
    from tensorrt_llm.commands import serve

    made = serve.PyTorchLLM

    def told(**settings: Any) -> Any:
        llm = made(**settings)
        Path(EFFECTIVE).write_text(json.dumps(effective_engine_args(llm.args)))
        return llm

    serve.PyTorchLLM = told
    folder, port = sys.argv[1:]
    sys.argv = ["trtllm-serve", "serve", folder, "--host", "127.0.0.1", "--port", port, "--backend", "pytorch"]
    sys.argv += ["--extra_llm_api_options", SETTINGS]
    serve.main()


# mpi4py's workers import this module again, under another name.
if __name__ == "__main__":
    main()

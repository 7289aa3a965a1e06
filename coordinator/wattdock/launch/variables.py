"""Choose a runner's environment variables: what reaches it, what is set, what is kept from it.

Pure: reads no environment of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.launch.runners import COMMON_DIR, PROTO_DIR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.launch.protocol import LaunchSpec

# A runner needs no secret: models are fetched by the coordinator.
SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY)"
    r"(_(ID|FILE|PATH|JSON))?$|PASSWORD$",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"://[^/\s@]+:[^/\s@]+@")
# These belong to the coordinator's interpreter.
PYTHON_NAMES = frozenset({"PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"})


def runner_variables(spec: LaunchSpec, environ: Mapping[str, str], *, keep_pythonpath: bool) -> dict[str, str]:
    """Return all environment variables of one runner.

    Args:
        spec: The runner; its `gpu_indices` decide what CUDA shows it.
        environ: The coordinator's own environment; secrets and what belongs to its interpreter are left out.
        keep_pythonpath: Append the caller's PYTHONPATH to ours, for an interpreter that the user named.

    Source: CUDA programming guide, "CUDA Environment Variables": an empty CUDA_VISIBLE_DEVICES shows no device.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in PYTHON_NAMES and not SECRET_NAME.search(name) and not SECRET_VALUE.search(value)
    }
    ours = [str(folder.absolute()) for folder in (PROTO_DIR, COMMON_DIR, spec.runner_dir)]
    theirs = environ.get("PYTHONPATH", "").split(os.pathsep) if keep_pythonpath else []
    return kept | {
        # The runner's working folder is not the caller's, so relative entries would point elsewhere.
        "PYTHONPATH": os.pathsep.join([*ours, *(str(Path(folder).absolute()) for folder in theirs if folder)]),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in spec.gpu_indices),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }

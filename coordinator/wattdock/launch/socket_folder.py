"""Make the private folder that holds one runner's socket.

Knows nothing of runners; whoever made the folder sees to its removal.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_NAME = "r.sock"
# Source: unix(7): sun_path holds 108 bytes with its closing zero. The margin is for what libraries put before it.
MAX_SOCKET_PATH_BYTES = 100


def make_socket_folder(environ: Mapping[str, str]) -> Path:
    """Make a new folder of mode 0700 for a socket named `r.sock` and return it.

    It lies in `$XDG_RUNTIME_DIR/wattdock` where that variable names a folder, else in the temporary folder.

    Raises:
        PreflightError: The socket's path would be too long, or the folder cannot be made.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    has_runtime = Path(runtime).is_absolute() and Path(runtime).is_dir()
    variable = "XDG_RUNTIME_DIR" if has_runtime else "TMPDIR"
    parent = Path(runtime, "wattdock") if has_runtime else Path(tempfile.gettempdir())
    name = secrets.token_hex(4)
    folder = parent / (name if has_runtime else f"wattdock-{name}")
    size_bytes = len(os.fsencode(folder / SOCKET_NAME))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        raise PreflightError(
            f"socket path {folder / SOCKET_NAME} has {size_bytes} bytes, {MAX_SOCKET_PATH_BYTES} are allowed: "
            f"set {variable} to a shorter folder"
        )
    try:
        if has_runtime:
            parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise PreflightError(f"cannot make {folder}: {error.strerror}; set {variable} to a writable folder") from error
    return folder

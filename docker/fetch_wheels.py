"""Fetch all wheels that an image needs, so that it can be built without a network: for the Python that runs this.

python docker/fetch_wheels.py REQUIREMENTS VARIANT FOLDER [IMAGE]

With IMAGE, the very wheels that `docker/images.lock` holds for it, by their hashes, and no others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

import tomllib

from wattdock.errors import WattdockError
from wattdock.launch.environment import Variant, choose_packages
from wattdock.launch.images.wheels import fetch_locked
from wattdock.launch.pip import Pip, describe_sizes, download_bytes


def main() -> int:
    """Fetch; return the exit status."""
    requirements, variant, folder, *image = sys.argv[1:]
    return fetch(Path(requirements), cast("Variant", variant), Path(folder), *image)


def fetch(requirements: Path, variant: Variant, folder: Path, image: str | None = None) -> int:
    """Fetch; return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    lock_fd = os.open(folder, os.O_RDONLY)
    if requirements.suffix == ".toml":
        lines = tomllib.loads(requirements.read_text(encoding="utf-8"))["project"]["dependencies"]
        requirements = folder / "requirements.txt"
        requirements.write_text("\n".join(lines), encoding="utf-8")
    pip = Pip(Path(sys.executable), folder / "pip.log", say, lock_fd)
    try:
        if image is not None:
            fetch_locked(pip, image, folder)
            return 0
        packages, options = choose_packages(pip, requirements, variant)
        say(describe_sizes(download_bytes(packages)))
        pip.download(packages, folder, *options)
    except WattdockError as error:
        sys.stderr.write(f"wattdock: {error}\n")
        return error.exit_code
    return 0


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

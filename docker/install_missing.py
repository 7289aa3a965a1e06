"""Install into an image what a runner needs and its base image lacks, and nothing that would change the base.

Runs while an image is built, with the base's own Python: the standard library and pip only. Packages go into a folder
of their own, without their dependencies: what those are was resolved against everything that the base has.

    python3 install_missing.py REQUIREMENTS TARGET [WHEELS]

With WHEELS, a folder that holds wheels, no index is asked; the wheels must be the whole set.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# As in the requirement files: packages to do without, though others ask for them.
WITHOUT = "# wattdock: without "


def main() -> None:
    """Install, and see that nothing else changed."""
    file, target, *rest = map(Path, sys.argv[1:])
    before = installed()
    wheels = sorted(rest[0].glob("*.whl")) if rest else []
    chosen = missing_wheels(wheels, before) if wheels else resolved(requirements_in(file), before)
    sys.stderr.write(f"{len(before)} packages in the base, {len(chosen)} to install\n")
    if chosen:
        pip("install", "--no-deps", "--target", str(target), *(("--no-index",) if wheels else ()), *chosen)
    if changed := sorted(set(before.items()) - set(installed().items())):
        sys.exit(f"the base image changed: {changed}")


def requirements_in(file: Path) -> str:
    """Return the lines of a requirements file, or what a pyproject.toml depends on."""
    if file.suffix != ".toml":
        return file.read_text()
    import tomllib

    return "\n".join(tomllib.loads(file.read_text())["project"]["dependencies"])


def installed() -> dict[str, str]:
    """Return the version of every package that this Python has, by normalised name."""
    return {canonical(each.metadata["Name"]): each.version for each in metadata.distributions()}


def missing_wheels(wheels: list[Path], before: dict[str, str]) -> list[str]:
    """Return the wheels of packages that are not there yet."""
    return [str(wheel) for wheel in wheels if canonical(wheel.name.split("-")[0]) not in before]


def resolved(requirements: str, before: dict[str, str]) -> list[str]:
    """Return what fits beside the base: pins of all that is missing, dependencies included.

    A pin of something that the base has is dropped: the base's engine is the reason for the base. A range is not.
    """
    lines = [line for each in requirements.splitlines() if (line := each.split("#")[0].strip())]
    wanted = [line for line in lines if named(line) not in before]
    for line in lines:
        if (version := before.get(named(line))) and "==" not in line and not admits(line, version):
            sys.exit(f"the base image has {named(line)} {version}, and {line} is needed: choose another base")
    if not wanted:
        return []
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "base.txt"), Path(folder, "report.json")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in before.items()))
        pip("install", "--dry-run", "--report", str(report), "--constraint", str(constraints), *wanted)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    unwanted = {canonical(name) for name in left_out(requirements)} | before.keys()
    return [
        f"{package['name']}=={package['version']}" for package in found if canonical(package["name"]) not in unwanted
    ]


def left_out(requirements: str) -> list[str]:
    """Return the packages that a requirements file is to be installed without."""
    return [
        name for line in requirements.splitlines() if line.startswith(WITHOUT) for name in line[len(WITHOUT) :].split()
    ]


def named(requirement: str) -> str:
    """Return which package a requirement is about."""
    return canonical(re.split(r"[\s<>=!~\[;]", requirement)[0])


def admits(requirement: str, version: str) -> bool:
    """Whether a version satisfies a requirement; vendors' pre-releases count."""
    from pip._vendor.packaging.requirements import Requirement

    return Requirement(requirement).specifier.contains(version, prereleases=True)


def canonical(name: str) -> str:
    """Return a package's name as the package index compares it. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*arguments: str) -> None:
    """Run pip; its failure is this program's."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip failed: {' '.join(arguments[:2])}")


if __name__ == "__main__":
    main()

"""Install into an image the packages that a runner needs and its base image lacks; the base is not changed.

Runs while an image is built, with the base's own Python: the standard library and pip only. Packages go into a folder
beside the base's, each without its dependencies, which were resolved against the packages of the base.

    python3 install_missing.py REQUIREMENTS TARGET [WHEELS]

With WHEELS, a folder of wheels, no index is asked; the folder must hold all wheels that are needed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# As in the requirement files: packages to leave out, though others need them.
WITHOUT = "# wattdock: without "


def main() -> None:
    """Install, and check that nothing else changed."""
    file, target, *folders = map(Path, sys.argv[1:])
    before = installed()
    wheels = sorted(folders[0].glob("*.whl")) if folders else []
    missing = missing_wheels(wheels, before) if wheels else missing_pins(requirements_in(file), before)
    sys.stderr.write(f"{len(before)} packages in the base, {len(missing)} to install\n")
    if missing:
        pip("install", "--no-deps", "--target", str(target), *(("--no-index",) if wheels else ()), *missing)
    if changed := sorted(set(before.items()) - set(installed().items())):
        sys.exit(f"the base image changed: {changed}")


def requirements_in(file: Path) -> str:
    """Return the lines of a requirements file, or the dependencies in a pyproject.toml."""
    if file.suffix != ".toml":
        return file.read_text()
    import tomllib

    return "\n".join(tomllib.loads(file.read_text())["project"]["dependencies"])


def installed() -> dict[str, str]:
    """Return the version of every package that this Python has, by normalised name."""
    return {canonical(package.metadata["Name"]): package.version for package in metadata.distributions()}


def missing_wheels(wheels: list[Path], before: dict[str, str]) -> list[str]:
    """Return the wheels of packages that the base lacks."""
    return [str(wheel) for wheel in wheels if canonical(wheel.name.split("-")[0]) not in before]


def missing_pins(requirements: str, before: dict[str, str]) -> list[str]:
    """Return exact versions of all packages that the base lacks, dependencies included, which fit the base.

    The base's version of a package wins over a pin, since the base was chosen for its engine; a range must hold.
    """
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    required = {line: package_of(line) for line in lines if line}
    for line, package in required.items():
        if (version := before.get(package)) and "==" not in line and not admits(line, version):
            sys.exit(f"the base image has {package} {version}, and {line} is needed: choose another base")
    missing = [line for line, package in required.items() if package not in before]
    if not missing:
        return []
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "base.txt"), Path(folder, "report.json")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in before.items()))
        pip("install", "--dry-run", "--report", str(report), "--constraint", str(constraints), *missing)
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    excluded = {canonical(name) for name in exclusions(requirements)} | before.keys()
    return [
        f"{package['name']}=={package['version']}" for package in packages if canonical(package["name"]) not in excluded
    ]


def exclusions(requirements: str) -> list[str]:
    """Return the packages that a requirements file leaves out."""
    return [
        name for line in requirements.splitlines() if line.startswith(WITHOUT) for name in line[len(WITHOUT) :].split()
    ]


def package_of(requirement: str) -> str:
    """Return the package of a requirement."""
    return canonical(re.split(r"[\s<>=!~\[;]", requirement)[0])


def admits(requirement: str, version: str) -> bool:
    """Whether a version satisfies a requirement; vendors' pre-releases count."""
    from pip._vendor.packaging.requirements import Requirement

    return Requirement(requirement).specifier.contains(version, prereleases=True)


def canonical(name: str) -> str:
    """Return the normalised name of a package. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*arguments: str) -> None:
    """Run pip, and exit if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip failed: {' '.join(arguments[:2])}")


if __name__ == "__main__":
    main()

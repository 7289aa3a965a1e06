"""Install into an image the packages that a runner needs and its base image lacks; the base is not changed.

Runs while an image is built, with the base's own Python: the standard library and pip only. Packages go into a folder
beside the base's, each without its dependencies, which were resolved against the packages of the base. The lock beside
the requirements says which versions are taken and which hashes their wheels must have; without a lock, pip chooses.

    python3 install_missing.py REQUIREMENTS TARGET [WHEELS]

REQUIREMENTS may be a lock itself. With WHEELS, a folder of wheels, no index is asked; the folder must hold all wheels
that are needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# The comment of requirement files that names packages to leave out, though others need them.
WITHOUT = "# wattdock: without "
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    """Install, and check that nothing else changed."""
    file, target, *folders = (Path(word).absolute() for word in sys.argv[1:])
    before, locked = installed(), lock_entries(file.with_suffix(".lock"))
    wheels = sorted(folders[0].glob("*.whl")) if folders else []
    if wheels:
        missing = missing_wheels(wheels, before, locked)
    elif file.suffix == ".lock":
        missing = [entry for entry in locked if package_of(entry) not in before]
    else:
        missing = missing_pins(file.read_text(), before, locked)
    sys.stderr.write(f"{len(before)} packages in the base, {len(missing)} to install{'' if locked else ', no lock'}\n")
    if missing:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write("\n".join(missing))
            wanted.flush()
            options = ("--no-index",) if wheels else hashed(locked)
            pip("install", "--no-deps", "--target", str(target), *options, "--requirement", wanted.name)
    if changed := sorted(set(before.items()) - set(installed().items())):
        sys.exit(f"the base image changed: {changed}")


def lock_entries(lock: Path) -> list[str]:
    """Return the packages of a lock, each with its version, marker and hashes; none where there is no lock."""
    return re.split(r"\n(?=\S)", lock.read_text().strip()) if lock.exists() else []


def hashed(locked: list[str]) -> tuple[str, ...]:
    """Return pip's options for what a lock names: wheels with its hashes, from wherever they are."""
    if not locked:
        return ()
    cpu = ("--extra-index-url", PYTORCH_CPU_INDEX) if any("+cpu" in entry for entry in locked) else ()
    return ("--require-hashes", "--only-binary", ":all:", *cpu)


def installed() -> dict[str, str]:
    """Return the version of every package that this Python has, by normalised name."""
    return {canonical(package.metadata["Name"]): package.version for package in metadata.distributions()}


def missing_wheels(wheels: list[Path], before: dict[str, str], locked: list[str]) -> list[str]:
    """Return the wheels of packages that the base lacks; each must be one of the lock's."""
    missing = [wheel for wheel in wheels if canonical(wheel.name.split("-")[0]) not in before]
    hashes = re.findall("sha256:([0-9a-f]{64})", "\n".join(locked))
    for wheel in missing if locked else ():
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in hashes:
            sys.exit(f"{wheel.name} has none of the lock's hashes: fetch the wheels again")
    return list(map(str, missing))


def missing_pins(requirements: str, before: dict[str, str], locked: list[str]) -> list[str]:
    """Return what to install of all packages that the base lacks, dependencies included, which fit the base.

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
    pins = [entry.split("\\")[0] for entry in locked if package_of(entry) not in before]
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "base.txt"), Path(folder, "report.json")
        constraints.write_text("\n".join([*(f"{name}=={version}" for name, version in before.items()), *pins]))
        # With hashes, pip would want those of the base's packages too.
        options = [option for option in hashed(locked) if option != "--require-hashes"]
        pip("install", "--dry-run", "--report", str(report), "--constraint", str(constraints), *options, *missing)
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    excluded = {canonical(name) for name in exclusions(requirements)} | before.keys()
    versions = {canonical(package["name"]): package["version"] for package in packages}
    wanted = {name: version for name, version in versions.items() if name not in excluded}
    if not locked:
        return [f"{name}=={version}" for name, version in wanted.items()]
    if unknown := wanted.keys() - set(map(package_of, locked)):
        sys.exit(f"the lock has no {', '.join(sorted(unknown))}, which this base needs: choose another base")
    return [entry for entry in locked if package_of(entry) in wanted]


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
    if subprocess.run(command, cwd=os.sep, check=False).returncode:
        sys.exit(f"pip failed: {' '.join(arguments[:2])}")


if __name__ == "__main__":
    main()

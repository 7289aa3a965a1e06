"""Drive pip in a virtual environment: resolve a requirements file, weigh the downloads, install what was resolved.

Knows nothing of backends or of when an environment is made; works with pip 23.2 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError
from wattdock.launch.process import KEEPER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Progress = Callable[[str], None]

HEAD_TIMEOUT_S = 10
HEADS_AT_ONCE = 8
LARGEST_SHOWN = 4
WITHOUT = "# wattdock: without "
CUDA_PREFIXES = ("nvidia-", "cuda-")


@dataclass(frozen=True)
class Package:
    """One package that pip chose: its exact version and where its file lies."""

    name: str
    version: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class Pip:
    """One environment's pip.

    Attributes:
        python: The environment's interpreter.
        log_path: Where all that pip says is appended.
        progress: Receives one plain line per step.
        lock_fd: Held open until nothing of pip is left, also when its caller was killed.
    """

    python: Path
    log_path: Path
    progress: Progress
    lock_fd: int

    def upgrade_itself(self) -> None:
        """Get a pip that can resolve without downloading, or say that the bundled one cannot."""
        try:
            self._run("install", "--quiet", "--upgrade", "pip>=25.1")
        except LaunchError:
            self.progress("no newer pip to be had: the bundled one downloads before sizes can be shown")

    def resolve(self, requirements: Path, *options: str) -> tuple[Package, ...]:
        """Return what pip would install into an empty environment, but for what the file is to be installed without.

        Raises:
            LaunchError: pip found no set, or reached no index.
        """
        report = self.log_path.with_name("report.json")
        dry = ("--dry-run", "--ignore-installed", "--report", str(report))
        self._run("install", "--quiet", *dry, "-r", str(requirements), *options)
        unwanted = left_out(requirements.read_text(encoding="utf-8"))
        packages = parse_report(report.read_text(encoding="utf-8"))
        return tuple(package for package in packages if package.name not in unwanted)

    def install(self, packages: Sequence[Package], *options: str) -> None:
        """Install exactly these packages.

        Raises:
            LaunchError: A package could not be fetched or built.
        """
        quiet = ("--progress-bar", "off", "--no-compile")
        self._run("install", *quiet, "--no-deps", "-r", self._pinned(packages), *options)
        self._compile()

    def _compile(self) -> None:
        """Compile what was installed with all cores, where pip takes one."""
        library = self.python.parent.parent / "lib"
        command = [str(self.python), "-I", "-m", "compileall", "-qq", "-j", "0", str(library)]
        # A file that is no Python of this version, such as a template, is nobody's to import.
        with contextlib.suppress(LaunchError):
            run_logged(command, log_path=self.log_path, lock_fd=self.lock_fd, on_line=lambda _: None)

    def download(self, packages: Sequence[Package], folder: Path, *options: str) -> None:
        """Fetch exactly these packages' wheels into a folder; no index is read again for those whose address is known.

        Raises:
            LaunchError: A package could not be fetched, or there is no wheel of it.
        """
        only = ("--only-binary", ":all:", "--dest", str(folder))
        pins = self._pinned(packages, by_address=True)
        self._run("download", "--progress-bar", "off", "--no-deps", *only, "-r", pins, *options)

    def _pinned(self, packages: Sequence[Package], *, by_address: bool = False) -> str:
        pins = self.log_path.with_name("pins.txt")
        pins.write_text(pin_lines(packages, by_address=by_address), encoding="utf-8")
        return str(pins)

    def _run(self, *arguments: str) -> None:
        run_logged(
            [str(self.python), "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments],
            log_path=self.log_path,
            lock_fd=self.lock_fd,
            on_line=lambda line: self._show(line),
        )

    def _show(self, line: str) -> None:
        if short := summarise(line):
            self.progress(short)


def run_logged(command: Sequence[str], *, log_path: Path, lock_fd: int, on_line: Progress) -> None:
    """Run a command to its end, its output into a log and, line by line, to `on_line`.

    It runs below a keeper, so that neither it nor anything it started outlives this process or this call; its temporary
    files lie beside the log and go with it.

    Raises:
        LaunchError: It failed; holds its last meaningful line and the log's path.
    """
    temporary = log_path.with_name("tmp")
    temporary.mkdir(exist_ok=True)
    recent: deque[str] = deque(maxlen=200)
    with (
        log_path.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), "0", str(temporary), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"TMPDIR": str(temporary)},
            # A terminal's Ctrl-C is the caller's to handle.
            start_new_session=True,
            pass_fds=(lock_fd,),
        ) as keeper,
    ):
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        for line in keeper.stderr:
            log.write(line)
            recent.append(line.strip())
            on_line(line.strip())
        ending = keeper.stdout.read().rpartition("\n")[0].rpartition("\n")[2]
    if ending != "ended exited with code 0":
        how = "" if ending.startswith("ended exited") else f"{ending}; "
        raise LaunchError(f"{failure(recent)} ({how}all of it: {log_path})")


def parse_report(text: str) -> tuple[Package, ...]:
    """Read pip's installation report.

    Source: pip documentation, "Installation Report", version 1.
    """
    return tuple(
        Package(
            name=str(item["metadata"]["name"]).lower().replace("_", "-"),
            version=str(item["metadata"]["version"]),
            url=str(item["download_info"]["url"]),
            sha256=item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256"),
        )
        for item in json.loads(text)["install"]
    )


def left_out(requirements: str) -> frozenset[str]:
    """Return the packages that a requirements file is to be installed without, though others ask for them.

    Written as comments, `# wattdock: without NAME NAME`, since pip has no such option.
    """
    lines = (line.partition(WITHOUT) for line in requirements.splitlines())
    return frozenset(
        name.lower().replace("_", "-") for before, _, names in lines if not before for name in names.split()
    )


def pin_lines(packages: Sequence[Package], *, by_address: bool = False) -> str:
    """Return a requirements file that admits these very files; by version alone where a hash is unknown.

    Args:
        by_address: Name wheels by where they lie, as far as that is known. An environment would note it; a folder of
            wheels does not.
    """
    hashed = all(package.sha256 for package in packages)
    return "".join(
        _which(package, by_address) + (f" --hash=sha256:{package.sha256}\n" if hashed else "\n") for package in packages
    )


def _which(package: Package, by_address: bool) -> str:
    if by_address and package.url.endswith(".whl"):
        return f"{package.name} @ {package.url}"
    return f"{package.name}=={package.version}"


def is_cpu_build(packages: Sequence[Package]) -> bool:
    """Whether this set runs torch without CUDA: a `+cpu` build, or one that asks for no CUDA package, or no torch."""
    # NVML's own bindings are no CUDA package, and the coordinator's set has them.
    if all(package.version.endswith("+cpu") for package in packages if package.name == "torch"):
        return True
    return not any(package.name.startswith(CUDA_PREFIXES) for package in packages)


def download_bytes(packages: Sequence[Package]) -> dict[str, int | None]:
    """Return the size in bytes of each package's file by package name; None where its host does not tell."""
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
        sizes = pool.map(lambda package: file_bytes(package.url, context), packages)
        return {package.name: size for package, size in zip(packages, sizes, strict=True)}


def file_bytes(url: str, context: ssl.SSLContext) -> int | None:
    """Return the size of the file behind a file: or http(s): address; None where it cannot be told."""
    try:
        if url.startswith("file:"):
            return Path(urllib.request.url2pathname(url.removeprefix("file://"))).stat().st_size
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=HEAD_TIMEOUT_S, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def describe_sizes(sizes: dict[str, int | None]) -> str:
    """Say in one line how much there is to fetch, and what makes up most of it."""
    known = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(known, key=lambda name: -known[name])[:LARGEST_SHOWN]
    unknown = f" and {len(sizes) - len(known)} of unknown size" if len(known) < len(sizes) else ""
    parts = ", ".join(f"{name} {megabytes(known[name])}" for name in largest)
    return f"{len(sizes)} packages, {megabytes(sum(known.values()))} to fetch{unknown}, less what pip has cached" + (
        f" (largest: {parts})" if parts else ""
    )


def megabytes(size_bytes: int) -> str:
    """Write a size for people, in units of 10^6 or 10^9 bytes."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


def summarise(line: str) -> str | None:
    """Turn one line of pip's output into one worth showing, without the host it came from; None for the rest."""
    # Dozens of packages are a few kilobytes each; only what takes time is worth a line.
    if found := re.match(r"Downloading (?:\S*/)?(\S+) \((\S+ [MG]B)\)$", line):
        return f"fetching {found[1]} ({found[2]})"
    if found := re.match(r"Building wheel for (\S+)", line):
        return f"building {found[1]}"
    if line.startswith("Installing collected packages:"):
        return f"installing {line.count(',') + 1} packages"
    if "WARNING: Retrying" in line:
        return "the package index does not answer; trying again"
    return None


def failure(lines: Sequence[str]) -> str:
    """Return the last line that says what went wrong, without the names of hosts."""
    said = [line for line in lines if line]
    errors = [line for line in said if re.match(r"(ERROR|error)\b", line)]
    text = (errors or said or ["it said nothing"])[-1]
    retried = " (the package index did not answer)" if any("Retrying" in line for line in said) else ""
    return re.sub(r"\w+://\S+", "<address>", text) + retried

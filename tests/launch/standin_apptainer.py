"""A program in Apptainer's place: it takes the options that Apptainer documents, refuses others, and runs a command.

Where the kernel lets a user make namespaces, the command sees what is bound where the command line says, beside all of
the host; elsewhere, paths on the command line are replaced by where they lie on the host. An image is a file that holds
the path of the program which stands for the image's `python3`.

Source: Apptainer 1.4.0, cmd/internal/cli (options of `exec` and `pull`); internal/pkg/runtime/engine/apptainer,
monitor_linux.go (how signals and exit codes pass).
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

EXEC_FLAGS = set(
    "allow-setuid cleanenv compat contain containall disable-cache docker-login fakeroot ignore-fakeroot-command "
    "ignore-subuid ignore-userns ipc keep-privs net no-eval no-home no-https no-init no-pid no-privs no-umask nv "
    "nvccli oom-kill-disable passphrase pid rocm sharens underlay unsquash userns uts writable writable-tmpfs".split()
)
EXEC_VALUES = set(
    "add-caps app apply-cgroups authfile bind blkio-weight blkio-weight-device cpu-shares cpus cpuset-cpus cpuset-mems "
    "cwd dns docker-host drop-caps env env-file fusemount home hostname memory memory-reservation memory-swap mount "
    "netns-path network network-args no-mount overlay pem-path pids-limit pwd scratch security workdir".split()
)
PULL_FLAGS = set("allow-unsigned disable-cache docker-login force no-https".split())
PULL_VALUES = set("arch arch-variant authfile dir docker-host library".split())
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that a container gets in spite of --cleanenv.
ALWAYS_PASSED = ("TERM", *(f"{kind}_proxy" for kind in "http https no all ftp".split()))
ALWAYS_PASSED += tuple(map(str.upper, ALWAYS_PASSED))
# Variables that a container gets from nowhere else.
NOT_PASSED = ("HOME", "APPTAINER_SHELL", "APPTAINER_APPNAME", "SINGULARITY_SHELL", "SINGULARITY_APPNAME")


# Binds pairs of paths, up to "--", into a copy of the root, goes to a folder there, and becomes a command.
CONTAIN = """
set -e
root=$1/root; shift
mkdir "$root"
mount -t tmpfs tmpfs "$root"
for entry in /*; do
    if [ -L "$entry" ]; then cp -P "$entry" "$root"
    elif [ "$entry" = /run ]; then mkdir "$root/run"
    elif [ -d "$entry" ]; then mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"
    fi
done
while [ "$1" != -- ]; do
    if [ -d "$2" ]; then mkdir -p "$root$1"; else mkdir -p "$(dirname "$root$1")"; touch "$root$1"; fi
    mount --bind "$2" "$root$1"
    shift 2
done
shift
exec chroot "$root" sh -c 'cd "$1"; shift; exec "$@"' sh "$@"
"""


def main(program: str, words: list[str]) -> int:
    if words == ["--version"]:
        print("apptainer version 1.4.0" if program == "apptainer" else "singularity-ce version 4.1.0")
        return 0
    command, *words = words
    if command == "pull":
        return pull(*parsed(words, PULL_FLAGS, PULL_VALUES))
    assert command == "exec"
    return execute(program, *parsed(words, EXEC_FLAGS, EXEC_VALUES))


def parsed(words: list[str], flags: set[str], valued: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return options with their values, and the arguments behind them."""
    options = []
    while words and words[0].startswith("-"):
        name, joined, value = words.pop(0).removeprefix("--").partition("=")
        if name not in flags | valued or (joined and name in flags):
            refuse(f"unknown flag: --{name}", 1)
        options.append((name, value if joined or name in flags else words.pop(0)))
    return options, words


def pull(options: list[tuple[str, str]], words: list[str]) -> int:
    """Make a file of an image, whose program is the one in the variable that a test sets."""
    out, uri = words
    if Path(out).exists() and ("force", "") not in options:
        refuse(f"image file already exists: {out!r} - will not overwrite", 255)
    if "absent" in uri:
        refuse(f"while making image from oci registry: reading manifest {uri}: manifest unknown", 255)
    print(f"INFO:    Converting OCI blobs to SIF format: {uri}", file=sys.stderr)
    Path(out).write_text(Path(os.environ["HOME"], "program").read_text())
    return 0


def execute(program: str, options: list[tuple[str, str]], words: list[str]) -> int:
    """Run a command as if in a container of an image, pass signals on, and end as the command ends."""
    image, *command = words
    given = dict(options)
    if not Path(image).is_file():
        refuse(f"could not open image {image}: failed to retrieve path for {image}", 255)
    mounts = [bound(value) for name, value in options if name == "mount"]
    places = [(inside, outside.removesuffix(":ro")) for inside, outside in mounts]
    work = Path(given["workdir"])
    for name in ("tmp", "var_tmp"):
        (work / name).mkdir(exist_ok=True)
    assert {"containall", "cleanenv", "no-eval", "no-home"} <= given.keys()
    passed = {name: os.environ[name] for name in ALWAYS_PASSED if name in os.environ}
    inside = {"LANG": "C", "PATH": PATH} | passed | variables(f"{program.upper()}ENV_")
    inside |= {"HOME": given["home"], "TMPDIR": str(work / "tmp"), "GIVEN": json.dumps([given, mounts])}
    assert command[0] == "python3"
    words = [Path(image).read_text().strip(), *command[1:]]
    if may_contain():
        binds = [path for place in places for path in place]
        contain = ["unshare", "-rm", "sh", "-c", CONTAIN, "sh", str(work), *binds, "--", given["pwd"], *words]
        child = subprocess.Popen(contain, env=inside)
    else:
        words = [on_host(word, places) for word in words]
        child = subprocess.Popen(words, cwd=on_host(given["pwd"], places), env=inside)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


def variables(prefix: str) -> dict[str, str]:
    """Return the variables of a container that those of the program with a prefix set."""
    for name in NOT_PASSED:
        if prefix + name in os.environ:
            refuse(f"Overriding {name} environment variable with {prefix}{name} is not permitted", 255)
    return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


def bound(row: str) -> tuple[str, str]:
    """Return where a mount lies in the container, and on the host."""
    [fields] = csv.reader([row])
    keys = dict(field.partition("=")[::2] for field in fields)
    if set(keys) - {"ro"} != {"type", "source", "destination"} or keys["type"] != "bind":
        refuse(f"invalid mount specification {row!r}", 255)
    source = Path(keys["source"])
    if not source.exists():
        refuse(f"mount source {source} doesn't exist", 255)
    for link in source.rglob("*"):
        if link.is_symlink() and not link.resolve().is_relative_to(source.resolve()):
            refuse(f"{link} leads nowhere in a container", 255)
    return keys["destination"], f"{source}{':ro' * ('ro' in keys)}"


def may_contain() -> bool:
    """Whether this user may make namespaces."""
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


def on_host(text: str, places: list[tuple[str, str]]) -> str:
    """Return a path of the container as the host has it."""
    for inside, outside in places:
        if text == inside or text.startswith(f"{inside}/"):
            return outside + text.removeprefix(inside)
    return text


def refuse(message: str, code: int) -> NoReturn:
    print(f"FATAL:   {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).name, sys.argv[2:]))

"""What a real neighbour puts where a program looks for its settings, its modules or its caches: nothing reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from command import SMALL, WATTDOCK, Command
from launch.local_index import LocalIndex, make_wheel
from seams.launch import uv
from unprivileged import OTHER_UID, UID, popen_as_user, run_as_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Run = Callable[[Sequence[str | Path], Mapping[str, str]], subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
PREFLIGHT = 3
MAKE = """
import sys
from pathlib import Path
from wattdock.launch.environment import Environment
print(Environment(Path(sys.argv[1]), "cpu", lambda line: None).ensure())
"""
COMMIT = """
import sys
from pathlib import Path
from wattdock.host import machine
print(machine.checkout(Path(sys.argv[1])).commit)
"""
DOCKER = "from wattdock.launch.images.build import run_docker; run_docker(['version'], 'no docker')"
# What a program of the neighbour's does.
MARK = '#!/bin/sh\n: > "$(dirname "$(readlink -f "$0")")/ran-as-$(id -u)"\nexit 1\n'


@pytest.fixture
def place(wattdock: Command) -> Path:
    """A folder that is everybody's."""
    folder = wattdock.home / "everybody"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def plant(wattdock: Command, place: Path) -> Callable[[str], None]:
    """Run a shell script as a neighbour in the folder that is everybody's."""

    def run(script: str) -> None:
        words, env = ["/bin/sh", "-ec", f"umask 022\n{script}"], {"HOME": str(wattdock.home)}
        with popen_as_user(words, env=env, cwd=place, uid=OTHER_UID) as process:
            assert process.wait(60) == 0

    return run


@pytest.fixture
def victim(request: pytest.FixtureRequest, wattdock: Command, place: Path) -> Run:
    """Run a program as root or a user, whose working folder lies in the one that is everybody's."""
    folder = place / "mine"
    folder.mkdir(mode=0o755)
    os.chown(folder, request.param, request.param)

    def run(words: Sequence[str | Path], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        env = {**wattdock.env(), **env}
        if request.param:
            return run_as_user(words, env=env, cwd=folder)
        # A socket's path is short; a test's own folder may not be.
        with tempfile.TemporaryDirectory() as temporary:
            bare = {"PATH": os.environ["PATH"], "TMPDIR": temporary}
            return subprocess.run(words, env=bare | env, cwd=folder, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def indexes() -> Iterator[tuple[LocalIndex, LocalIndex]]:
    """Two indexes: the victim's own, and the neighbour's, which has a newer version."""
    with LocalIndex(make_wheel("stem", "1.5")) as own, LocalIndex(make_wheel("stem", "9.9")) as other:
        yield own, other


def only(index: LocalIndex) -> dict[str, str]:
    """Return the variables of somebody whose packages come from one index."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.url, "PIP_RETRIES": "0", "UV_NO_CACHE": "1"}


SETTINGS = {"uv.toml": "[[index]]\nurl = '{url}'\n", "pyproject.toml": "[[tool.uv.index]]\nurl = '{url}'\n"}


@pytest.mark.parametrize(("victim", "name"), [*zip((0, UID), SETTINGS, strict=True)], indirect=["victim"])
def test_settings_of_uv_above_the_working_folder_are_not_read(
    name: str,
    victim: Run,
    plant: Callable[[str], None],
    place: Path,
    indexes: tuple[LocalIndex, LocalIndex],
    wattdock: Command,
) -> None:
    """Neither for an environment of a backend, with or without a lock, nor for what make installs."""
    own, other = indexes
    plant(f"cat > {name} <<'END'\n{SETTINGS[name].format(url=other.url)}END\n")
    backend = place / "mine" / "small"
    backend.mkdir()
    os.chown(backend, (place / "mine").stat().st_uid, -1)
    (backend / "requirements-cpu.txt").write_text("stem\n")
    made = victim([sys.executable, "-P", "-c", MAKE, backend], only(own))
    assert made.returncode == 0, made.stderr
    asked = subprocess.run(
        [made.stdout.strip(), "-c", "import stem; print(stem.VERSION)"], capture_output=True, text=True, check=True
    )
    target = place / "mine" / "installed"
    installed = victim([sys.executable, "-I", uv.__file__, "pip", "install", "--target", target, "stem"], only(own))
    assert installed.returncode == 0, installed.stderr
    assert other.requests == []
    assert asked.stdout.strip() == "1.5"
    assert list(target.glob("stem-1.5*"))


@pytest.mark.parametrize(("victim", "module"), [(0, "typer"), (UID, "yaml")], indirect=["victim"])
def test_modules_in_the_working_folder_are_not_imported(
    module: str, victim: Run, plant: Callable[[str], None], place: Path, wattdock: Command
) -> None:
    """By the command, nor by `python -m wattdock` once wattdock itself has been found."""
    plant(f'mkdir ours; echo \'open("{place}/ran", "w")\' > ours/{module}.py')
    owner = (place / "mine").stat().st_uid
    os.chown(wattdock.home / "tmp", owner, owner)
    (place / "mine").rmdir()
    (place / "mine").symlink_to(place / "ours")
    for command in ([WATTDOCK], [sys.executable, "-m", "wattdock"]):
        done = victim([*command, "plan", *SMALL, "--output-dir", wattdock.home / "out"], {"PYTHONPATH": ""})
        assert not (place / "ran").exists(), done.stderr
        assert done.returncode == 0, done.stderr
        assert "fake" in done.stdout


@pytest.mark.parametrize("victim", [0, UID], indirect=True)
def test_a_checkout_of_a_strangers_starts_no_program_of_theirs(
    victim: Run, plant: Callable[[str], None], place: Path
) -> None:
    """git reads what a checkout names as its watcher of files; the user's own settings change no verdict."""
    plant(
        f"""git init -q theirs; cd theirs; printf '%s' '{MARK}' > program; chmod 755 program
        git config core.fsmonitor "$PWD/program"; git config core.hooksPath "$PWD"
        cp program post-index-change; chmod 777 .
        quiet="-c core.fsmonitor=false -c core.hooksPath=/dev/null"
        git -c user.name=x -c user.email=x@y $quiet commit -q --allow-empty -m x
        """
    )
    done = victim([sys.executable, "-P", "-c", COMMIT, place / "theirs"], {})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 40, done.stdout
    assert not list((place / "theirs").glob("ran-as-*"))


@pytest.mark.parametrize(
    ("victim", "program", "code"), [(0, "git", COMMIT), (UID, "docker", DOCKER)], indirect=["victim"]
)
def test_a_program_is_never_taken_from_the_working_folder(
    program: str, code: str, victim: Run, plant: Callable[[str], None], place: Path, wattdock: Command
) -> None:
    """PATH with an empty entry, as `PATH=$MORE:$PATH` leaves it, means the working folder; a later entry is used."""
    plant(f"mkdir -m 777 ours; printf '%s' '{MARK}' > ours/{program}; chmod 755 ours/{program}; mkdir ours/.git")
    (place / "mine").rmdir()
    (place / "mine").symlink_to(place / "ours")
    own = wattdock.home / "own" / program
    own.parent.mkdir(mode=0o755)
    own.write_text(f"#!/bin/sh\n: > {place}/own-ran\nexit 1\n")
    own.chmod(0o755)
    path = f":{own.parent}:{os.environ['PATH']}"
    done = victim([sys.executable, "-P", "-c", code, place / "ours"], {"PATH": path, "DOCKER_HOST": "unix:///absent"})
    assert not list((place / "ours").glob("ran-as-*"))
    assert (place / "own-ran").exists(), done.stderr


def test_what_engines_compile_lies_where_only_the_user_can_write(wattdock: Command, place: Path) -> None:
    """Not under a name in /tmp that anybody can take first; and what lies in a working folder is no module."""
    python = wattdock.folder / "python"
    python.write_text(f'#!/bin/sh\nenv > {wattdock.folder}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    os.chown(wattdock.folder / "python", UID, UID)
    done = run_as_user(
        [WATTDOCK, "run", *SMALL, "--runner-python", python],
        env=wattdock.env({"WATTDOCK_HOME": str(place)}),
        cwd=wattdock.folder,
    )
    assert done.returncode == 0, done.stderr
    seen = dict(line.partition("=")[::2] for line in (wattdock.folder / "seen").read_text().splitlines())
    cache = place / f"cache-{UID}"
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (UID, 0o700)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert seen[name].startswith(f"{cache}/")
    assert seen["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("kind", ["mkdir -m 777", "ln -s /tmp"])
def test_a_cache_that_a_neighbour_made_first_is_refused(
    kind: str, wattdock: Command, place: Path, plant: Callable[[str], None]
) -> None:
    """Its owner could put compiled code there, which a runner would load; the message says what to do."""
    plant(f"{kind} cache-{UID}")
    done = wattdock("run", *SMALL, env={"WATTDOCK_HOME": str(place)})
    assert done.returncode == PREFLIGHT, done.stderr
    lines = [line for line in done.stderr.splitlines() if f"others can change {place}/cache-{UID}; remove it" in line]
    assert lines, done.stderr
    assert "Traceback" not in done.stderr

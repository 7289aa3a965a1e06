"""What is installed into an image, and what is left as it is."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch.local_index import make_wheel

pytestmark = pytest.mark.slow

INSTALLER = Path(__file__).parents[2] / "docker" / "install_missing.py"


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    file, content = make_wheel(name, version, requires)
    (folder / file).write_bytes(content)
    return folder / file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a base image's stand-in, which has an engine and a protobuf of its own."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", folder / "base"], check=True)
    python = folder / "base/bin/python"
    wheels = [write_wheel(folder / "its", name, version) for name, version in (("engine", "9.1"), ("protobuf", "4.0"))]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *wheels], check=True)
    return python


def install(
    base: Path,
    tmp_path: Path,
    requirements: str,
    index: Path,
    *,
    offline: bool = False,
    given: str = "requirements.txt",
) -> subprocess.CompletedProcess[str]:
    """Run the installer in the base; `index` is all that pip can find, or with `offline` the folder of wheels."""
    (tmp_path / "requirements.txt").write_text(requirements)
    return subprocess.run(
        [base, INSTALLER, tmp_path / given, tmp_path / "added", *([index] if offline else [])],
        env={
            "PATH": "/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index),
            "PIP_CONFIG_FILE": "/dev/null",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def lock(tmp_path: Path, *wheels: Path) -> None:
    """Write the lock beside the requirements: these wheels and no others."""
    pins = [(file.name.split("-"), hashlib.sha256(file.read_bytes()).hexdigest()) for file in wheels]
    lines = [f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for (name, version, *_), digest in pins]
    (tmp_path / "requirements.lock").write_text("".join(lines))


def added(tmp_path: Path) -> list[str]:
    return sorted(file.stem for file in (tmp_path / "added").glob("*.py")) if (tmp_path / "added").exists() else []


def test_only_what_is_missing_is_added_beside_the_base(base: Path, tmp_path: Path) -> None:
    """The base's engine wins over a pin; what a missing package needs comes along, at a version that fits the base."""
    index = tmp_path / "index"
    write_wheel(index, "engine", "8.0")
    write_wheel(index, "wire", "2.0", ("protobuf>=5",))
    write_wheel(index, "wire", "1.0", ("protobuf>=4,<5", "small", "unwanted"))
    for name in ("small", "unwanted"):
        write_wheel(index, name, "1.0")
    done = install(base, tmp_path, "# wattdock: without unwanted\nengine==8.0\nwire>=1.0\nprotobuf>=3\n", index)
    assert done.returncode == 0, done.stderr
    assert added(tmp_path) == ["small", "wire"]
    # What a requirements file does without is left out, though another package asks for it.
    assert "1.0" in (tmp_path / "added/wire.py").read_text()


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("protobuf>=5", "the base image has protobuf 4.0, and protobuf>=5 is needed: choose another base"),
        ("wire", "protobuf"),
    ],
)
def test_nothing_that_fits_the_base_is_an_error_and_not_a_replacement(
    requirement: str, said: str, base: Path, tmp_path: Path
) -> None:
    """The build fails before it changes anything: that would break what was built on the base."""
    write_wheel(tmp_path / "index", "wire", "2.0", ("protobuf>=5",))
    done = install(base, tmp_path, f"{requirement}\n", tmp_path / "index")
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert added(tmp_path) == []


def test_of_what_is_missing_the_locks_version_is_added_and_no_other_file_under_its_name(
    base: Path, tmp_path: Path
) -> None:
    """An index that has newer ones changes nothing; one that has another file fails the build."""
    index = tmp_path / "index"
    wire, small = (write_wheel(index, "wire", "1.0", ("small",)), write_wheel(index, "small", "1.0"))
    write_wheel(index, "wire", "2.0")
    lock(tmp_path, wire, small, write_wheel(tmp_path / "others", "engine", "8.0"))
    done = install(base, tmp_path, "engine==8.0\nwire>=1.0\n", index)
    assert done.returncode == 0, done.stderr
    assert added(tmp_path) == ["small", "wire"]
    assert "1.0" in (tmp_path / "added/wire.py").read_text()
    shutil.rmtree(tmp_path / "added")
    write_wheel(index, "small", "1.0", ("engine",))
    for offline in (False, True):
        done = install(base, tmp_path, "engine==8.0\nwire>=1.0\n", index, offline=offline)
        assert done.returncode != 0
        said = "has none of the lock's hashes" if offline else "DO NOT MATCH THE HASHES"
        assert said in done.stderr
        assert added(tmp_path) == []


def test_what_the_lock_lacks_is_not_added(base: Path, tmp_path: Path) -> None:
    """A base that needs more than the lock has is not for this lock."""
    wire = write_wheel(tmp_path / "index", "wire", "1.0", ("small",))
    write_wheel(tmp_path / "index", "small", "1.0")
    lock(tmp_path, wire)
    done = install(base, tmp_path, "wire\n", tmp_path / "index")
    assert "small" in done.stderr
    assert added(tmp_path) == []


def test_a_lock_itself_is_installed_less_what_the_base_has(base: Path, tmp_path: Path) -> None:
    """As the coordinator's is, which has no requirements file beside it."""
    index = tmp_path / "index"
    lock(tmp_path, write_wheel(index, "wire", "1.0"), write_wheel(index, "engine", "8.0"))
    done = install(base, tmp_path, "", index, given="requirements.lock")
    assert done.returncode == 0, done.stderr
    assert added(tmp_path) == ["wire"]


def test_with_wheels_the_whole_set_is_installed_less_what_the_base_has(base: Path, tmp_path: Path) -> None:
    """No index is asked and nothing is resolved."""
    wheels = tmp_path / "wheels"
    for name in ("wire", "small", "engine"):
        write_wheel(wheels, name, "1.0")
    done = install(base, tmp_path, "wire\nabsent\n", wheels, offline=True)
    assert done.returncode == 0, done.stderr
    assert added(tmp_path) == ["small", "wire"]


def test_a_base_that_changed_meanwhile_fails_the_build(base: Path, tmp_path: Path) -> None:
    """Whatever did it; here something that runs with the installation."""
    copy = shutil.copytree(base.parents[1], tmp_path / "base", symlinks=True)
    [site] = (copy / "lib").glob("python*/site-packages")
    metadata = site / "engine-9.1.dist-info" / "METADATA"
    other = "Metadata-Version: 2.1\nName: engine\nVersion: 0.1\n"
    (site / "meddler.pth").write_text(
        f"import sys; '--target' in sys.orig_argv and open({str(metadata)!r}, 'w').write({other!r})\n"
    )
    write_wheel(tmp_path / "index", "wire", "1.0")
    done = install(copy / "bin/python", tmp_path, "wire\n", tmp_path / "index")
    assert done.returncode != 0
    assert "('engine', '9.1')" in done.stderr

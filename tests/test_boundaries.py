"""What may import what, and what the packages declare."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from sources import calls, nodes

REPO = Path(__file__).resolve().parents[1]
ENGINES = {"torch", "transformers", "accelerate", "vllm", "tensorrt_llm", "sglang"}
HOST_ONLY = {"pydantic", "docker", "zeus", "pynvml", "wattdock"}
RUNNER_COMMON = {"grpc", "google", "wattdock_proto", "wattdock_runner"}


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the top-level names that a file imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return frozenset(names)


def sources(*folders: str) -> list[Path]:
    files: list[Path] = []
    for folder in folders:
        for place, within, names in os.walk(REPO / folder):
            # Environments hold a hundred thousand files.
            within[:] = [name for name in within if name != ".venv"]
            files += [Path(place) / name for name in names if name.endswith(".py")]
    assert files
    return files


def offending(folder: str, forbidden: set[str]) -> dict[str, frozenset[str]]:
    """Return what files of a folder import of these names."""
    found = {str(file.relative_to(REPO)): imported(file) & forbidden for file in sources(folder)}
    return {file: names for file, names in found.items() if names}


def test_the_coordinator_imports_no_engine_and_runners_nothing_of_the_host() -> None:
    """Neither environment needs, nor clashes with, what the other side uses."""
    assert offending("coordinator", ENGINES) == {}
    assert offending("runners", HOST_ONLY) == {}


STARTS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "system", "popen", "posix_spawn"}


def started(file: Path) -> list[ast.Call]:
    """Return the calls by which a file starts a program."""
    attributes = [(call, call.func) for call in calls(file) if isinstance(call.func, ast.Attribute)]
    return [
        call
        for call, name in attributes
        if name.attr in STARTS and isinstance(name.value, ast.Name) and name.value.id in {"os", "subprocess"}
    ]


def test_every_program_that_the_coordinator_starts_gets_an_environment_of_its_own() -> None:
    """What is not passed on by name, a stranger's file cannot read; the keeper has such an environment and keeps it."""
    found = {file.name: started(file) for file in sources("coordinator") if file.name != "keeper.py"}
    assert sum(map(len, found.values())) > 5
    without = {name for name, starts in found.items() for call in starts if "env" not in {k.arg for k in call.keywords}}
    assert without == set()


# Programs that work in the caller's folder, by the reason.
STARTED_HERE = {
    "keeper.py: in its own folder, which whoever starts it chose",
    "jobs.py: a job works where it was submitted, as its script may expect",
    # In the folder that the coordinator gave to the runner.
    *(
        "engine_server.py: in the runner's",
        "gpus.py: in the runner's",
        "spread.py: in the runner's",
        "program.py: in the runner's",
    ),
    "pictures.py: a developer's",
}


def test_every_program_that_is_started_has_a_working_folder_of_its_own() -> None:
    """Many programs look for settings and modules where they are started, and PATH may hold relative folders."""
    folders = ("coordinator", "runners", "docker", "docs")
    found = {(file.name, call) for file in sources(*folders) for call in started(file)}
    without = {name for name, call in found if "cwd" not in {keyword.arg for keyword in call.keywords}}
    assert without == {reason.partition(":")[0] for reason in STARTED_HERE}


def test_what_reads_settings_where_it_is_started_is_told_not_to() -> None:
    """Python reads modules, uv its files above the working folder, git what programs a checkout names."""
    text = "".join(file.read_text() for file in sources("coordinator", "docker")) + (REPO / "Makefile").read_text()
    pythons = re.findall(r'sys\.executable, "(-\w+)", "-m"', text) + re.findall(
        r"python\)? (-\w+) -m (?:pip|venv)", text
    )
    assert len(pythons) > 5
    assert set(pythons) <= {"-I", "-P"}
    assert re.findall(r'"-m", "uv", "([^"]+)"', text) == ["--no-config"]
    assert re.findall(r'\["git", (.*?)\]', text) == [
        '"-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"'
    ]


OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
# Opens that go round `wattdock.opening`, as no other user can have made what they open; by the reason, file and callee.
OPENED_ELSEWHERE = {
    "opening.py: here it is done": {"os.open"},
    "opening.py: the kernel's": {"OVERFLOW_UID.read_text"},
    "owned_folder.py: here it is done": {"os.open"},
    "files.py: here folders are made": {"os.open", "scratch.open"},
    "files.py: the kernel's": {"(PROC / 'locks').read_text", "(process / 'comm').read_text"},
    "publish/archive.py: a file of an OwnedFolder": {"content.open"},
    "clock.py: the kernel's": {"BOOT_ID.read_text"},
    "doctor/checks.py: the kernel's": {"file.read_text"},
    "host/leases.py: the kernel's": {"MOUNTS.read_text"},
    "host/leases.py: looks at what it opened": {"os.open"},
    "host/machine.py: the kernel's": {"CPUINFO.read_text"},
    "host/processes.py: the kernel's": {
        *("(proc / 'stat').read_text", "(process / 'stat').read_bytes"),
        *("(process / 'comm').read_text", "(PROC / str(pid) / 'cmdline').read_bytes"),
        *("(proc / 'net' / name).read_text", "file.read_text"),
    },
    "launch/keeper.py: the kernel's": {
        *("Path(f'/proc/{pid}/cmdline').read_bytes", "Path(f'/proc/{pid}/statm').read_text"),
        *("(entry / 'stat').read_bytes", "(root / 'proc/meminfo').read_text", "(root / 'proc/self/cgroup').read_text"),
        *("(folder / 'memory.stat').read_text", "(folder / limit).read_text", "(folder / use).read_text"),
    },
    "metering/rapl.py: the kernel's": {
        *("(self.folder / 'energy_uj').read_text", "(folder / 'max_energy_range_uj').read_text"),
        *("(folder / 'name').read_text", "(root / parent / 'name').read_text"),
    },
    "console/exits.py: /dev/null": {"os.open"},
    "output.py: /dev/null": {"Path(os.devnull).open"},
    "host/gpu_models.py: wattdock's own": {"(files('wattdock.host') / 'gpus.yaml').read_text"},
    "imported/read.py: wattdock's own": {"(files('wattdock.imported') / 'origins.yaml').read_text"},
    "inputs/prompts/source.py: wattdock's own": {"(files('wattdock.inputs') / 'prompts.jsonl').read_bytes"},
    "quality/bundled.py: wattdock's own": {"(files('wattdock.quality') / 'questions.jsonl').read_text"},
    "forms/rungs.py: an installed package's": {"Path(str(package.locate_file(MIXES))).read_text"},
    "inputs/shapes.py: wattdock's own": {"(files('wattdock.inputs') / 'shapes.yaml').read_text"},
    "launch/images/build.py: wattdock's own": {"(DOCKER / f'{name}.Dockerfile').read_text"},
    "reports/page.py: wattdock's own": {"resources.files('wattdock.reports').joinpath(ASSETS, name).read_text"},
    "live/server.py: wattdock's own": {"resources.files(package).joinpath(name).read_bytes"},
    "inputs/gguf.py: in a new folder": {"(folder / name).write_text"},
    "inputs/shapes.py: in a new folder": {"(scratch / 'config.json').write_text"},
    "launch/docker.py: in a new folder": {"spec.log_path.open", "self._spec.log_path.open"},
    "launch/environment.py: in a new folder": {*("self.stamp_file.write_text", "(self.notes / 'uv.log').open")},
    "launch/packages.py: through importlib": {"package.read_text"},
    "launch/process.py: in a new folder": {"spec.log_path.open"},
    "publish/bundle.py: in a new folder": {"(files.folder / inner).open"},
    "launch/packages.py: in a new folder": {"(venv / NOTE).write_text"},
    "records/disk.py: in a new folder": {"(scratch / RECORD).write_text"},
    "store/folders.py: in a new folder": {
        "(place / RESULT).write_text",
        "(place / SUMS).write_text",
        "(place / LOG).open",
    },
    "metering/meter.py: no file": {"self._source.open"},
    "metering/zeus.py: no file": {"super().open"},
}


def opened(file: Path) -> set[str]:
    """Return the callees by which a file opens others; a tar in a file that is open already opens none."""
    return {
        ast.unparse(call.func)
        for call in calls(file)
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in OPENS
        and "fileobj" not in {keyword.arg for keyword in call.keywords}
        and ast.unparse(call.func) != "OwnedFolder.open"
    }


def test_whatever_another_user_may_have_made_is_opened_in_the_one_way_that_waits_for_nobody() -> None:
    """A pipe in a file's place would stop whoever opens it by name."""
    place = REPO / "coordinator" / "wattdock"
    found = {(str(file.relative_to(place)), callee) for file in sources("coordinator") for callee in opened(file)}
    listed = {(why.split(":")[0], callee) for why, callees in OPENED_ELSEWHERE.items() for callee in callees}
    assert found == listed


LOOKS = {"stat", "lstat", "access", "exists", "lexists", "is_file", "is_dir", "is_symlink", "resolve", "readlink"}
LOOKS |= {"glob", "rglob", "iterdir", "listdir", "scandir", "walk", "isfile", "isdir", "getsize", "getmtime"}
LOOKS |= {"realpath", "copy", "copy2", "copyfile", "copytree", "move", "read_parquet"}
# Of a model's folder (`inputs`) only config.json is kept, read by an `OwnedFolder`; engines open the rest by name.
# Looks at paths that go round `OwnedFolder` in the rooms that read what others may have stored: what a look finds is
# opened as an `OwnedFolder`, which judges it anew; by the reason, file and callee.
LOOKED_ELSEWHERE = {
    "execution/experiment.py: no path": {"resolve"},
    "execution/experiment.py: its own log": {"log.exists"},
    "planning/eta.py: names to open": {"output_dir.glob"},
    "study/find.py: names to open": {"output_dir.glob", "studies.glob"},
    "study/find.py: whose a study is": {"path.lstat", "folder.lstat"},
    "study/folder.py: its own records": {"(self.path / journal.RECORDS).glob", "path.is_dir"},
    "study/folder.py: numbers of runs, a shared folder": {"studies.iterdir", "output_dir.stat"},
    "study/journal.py: to be opened": {"(path / RESULT).exists"},
    "study/tasks.py: to be opened": {"os.path.lexists"},
    "study/watch.py: the kernel's": {"(PROC / str(pid)).stat"},
    "fleet/fleet.py: a person's path": {"path.resolve"},
    "live/server.py: a person's path": {"output_dir.exists", "output_dir.is_dir"},
    "publish/bundle.py: a person's path": {"path.exists", "path.is_dir"},
    "publish/create.py: a person's path": {
        *("lock.is_file", "out.exists", "out.absolute().parent.is_dir"),
        *("stored.folder.resolve", "results[0].folder.resolve"),
    },
    "planning/preflight.py: a person's path": {"folder.is_dir", "(folder / program).is_file"},
    "publish/reproduce.py: in a verified bundle": {"packed.is_file", "lock.is_file"},
    "publish/reproduce.py: wattdock's own": {"find_runner(written.backend).glob"},
    "records/disk.py: a study's own records": {"folder.exists", "parent.glob", "scratch.iterdir", "written.stat"},
    "store/folders.py: names to open, its own new folder": {
        *("output_dir.glob", "place.rglob", "shutil.copytree", "shutil.copy2"),
    },
    "store/selection.py: a person's path, names to open": {
        *("path.is_file", "Path(name).exists", "Path(place).is_file", "os.access"),
        *("output_dir.glob", "path.glob", "(path / RESTARTS).is_dir", "(path / MANIFEST).exists"),
    },
}


def test_no_look_at_a_stored_path_goes_round_the_opened_folder_without_a_reason() -> None:
    """Between a look at a path and its opening, the path may come to mean another file."""
    place, found = REPO / "coordinator" / "wattdock", set()
    for room in ("execution", "fleet", "live", "planning", "publish", "records", "store", "study"):
        for file in sources(f"coordinator/wattdock/{room}"):
            found |= {
                (str(file.relative_to(place)), ast.unparse(call.func))
                for call in calls(file)
                if getattr(call.func, "attr", getattr(call.func, "id", "")) in LOOKS
            }
    listed = {(why.split(":")[0], callee) for why, callees in LOOKED_ELSEWHERE.items() for callee in callees}
    assert found == listed


READ_CODE = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
LOADS = {"np.load", "numpy.load", "torch.load", "yaml.load", "eval", "exec"}


def test_nothing_of_ours_reads_what_can_hold_code() -> None:
    """Replicas and ranks send each other objects, over socket pairs that have no name; no other process gets there."""
    files = sources("coordinator", "runners", "docker")
    called = {(file.name, ast.unparse(call.func)) for file in files for call in calls(file)}
    assert {(name, callee) for name, callee in called if callee in LOADS} == set()
    assert {file.name: imported(file) & READ_CODE for file in files if imported(file) & READ_CODE} == {}
    talking = {file.name for file in files if "multiprocessing" in imported(file)}
    assert talking == {"spread.py", "worker.py", "wattdock_vllm_worker.py"}


def test_what_every_runner_shares_needs_grpcio_protobuf_and_the_standard_library_only() -> None:
    """Whatever engine it stands beside; only what asks an engine's own server needs more, to ask and to read."""
    more = {file.name: imported(file) - RUNNER_COMMON - sys.stdlib_module_names for file in sources("runners/common")}
    asking = {"engine_server.py": {"prometheus_client"}, "served.py": {"aiohttp"}}
    assert {name: names for name, names in more.items() if names} == asking


def test_importing_the_command_loads_no_engine_and_nothing_slow() -> None:
    """`--help` must be quick, also where engines are installed beside it."""
    code = "import sys, wattdock, wattdock.console.main; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded & (ENGINES | {"grpc", "numpy", "pyarrow", "pydantic", "docker", "pynvml", "zeus"}) == set()


def declared(file: str, *keys: str) -> set[str]:
    """Return the distribution names in one list of a pyproject file."""
    entries = tomllib.loads((REPO / file).read_text())["project"]
    for key in keys:
        entries = entries[key]
    return {re.split(r"[\s<>=!~\[;]", entry, maxsplit=1)[0] for entry in entries}


@pytest.mark.parametrize(
    ("project", "folders", "packages"),
    [
        (".", ("coordinator", "proto"), {"docker": "docker", "pydantic": "pydantic", "nvidia-ml-py": "pynvml"}),
        (".", ("coordinator", "proto"), {"grpcio": "grpc", "protobuf": "google"}),
        *(("runners/pytorch", ("runners/pytorch",), {name: name}) for name in ("torch", "transformers")),
        ("runners/vllm", ("runners/vllm",), {"vllm": "vllm"}),
        ("runners/tensorrt", ("runners/tensorrt",), {"tensorrt-llm": "tensorrt_llm"}),
        ("runners/sglang", ("runners/sglang",), {"sglang": "sglang"}),
    ],
)
def test_what_was_asked_for_is_declared_and_really_imported(
    project: str, folders: tuple[str, ...], packages: dict[str, str]
) -> None:
    """A dependency that nothing uses is as wrong as a use that nothing declares."""
    assert packages.keys() <= declared(f"{project}/pyproject.toml", "dependencies")
    assert set(packages.values()) <= set().union(*map(imported, sources(*folders)))


@pytest.mark.parametrize(
    "project", sorted((REPO / "runners").glob("*/pyproject.toml")), ids=lambda file: file.parent.name
)
def test_a_runner_s_package_holds_every_module_of_its_folder(project: Path) -> None:
    """An installed one would miss the others only once a setting needs them."""
    listed = tomllib.loads(project.read_text())["tool"]["setuptools"]["py-modules"]
    assert listed == sorted(file.stem for file in project.parent.glob("*.py"))


def test_the_coordinator_declares_everything_it_imports() -> None:
    """A fresh environment has what pyproject names, and no more can be relied on."""
    names = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "grpc": "grpcio", "google": "protobuf"}
    names |= {"huggingface_hub": "huggingface-hub", "vl_convert": "vl-convert-python"}
    names |= {"prometheus_client": "prometheus-client", "lm_eval": "lm-eval"}
    names |= {"mlflow": "mlflow-skinny"}
    used = set().union(*map(imported, sources("coordinator"))) - sys.stdlib_module_names
    third_party = used - {"wattdock", "wattdock_proto"}
    optional = ("nodes", "report", "serve", "zeus", "quality", "mlflow", "wandb")
    extras = (declared("pyproject.toml", "optional-dependencies", extra) for extra in optional)
    needed = declared("pyproject.toml", "dependencies").union(*extras)
    undeclared = {names.get(name, name) for name in third_party} - needed
    # pydantic brings its own core; pip and uv are run, not imported.
    assert undeclared - {"pydantic_core"} == set()


def test_no_folder_shadows_a_real_package() -> None:
    """An `__init__.py` there would hide docker, vllm or proto from everything that starts in the repository."""
    shadowing = [REPO / folder / "__init__.py" for folder in ("docker", "proto", "runners")]
    shadowing += [backend / "__init__.py" for backend in (REPO / "runners").iterdir() if backend.is_dir()]
    assert [path for path in shadowing if path.exists()] == []


@pytest.mark.parametrize("folder", ["tests", "docs", "examples"])
def test_no_package_of_zeus_shadows_a_folder_of_ours(folder: str) -> None:
    """Zeus installs its own under these names; from the repository, ours must come first."""
    code = f"import importlib.util as u; print(*u.find_spec({folder!r}).submodule_search_locations, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert Path(done.stdout.splitlines()[0]).resolve() == REPO / folder

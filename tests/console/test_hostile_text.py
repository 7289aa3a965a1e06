"""Names, errors and texts that somebody else wrote reach no terminal as codes, whatever the verb."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu, FakeProcess
from make.rows import document
from make.stored import bundled, complete, sealed, stored, unpacked
from pydantic import ValidationError
from steering import CODES, HOSTILE, steers

from wattdock.analysis import ExperimentResult
from wattdock.host import leases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Called

RESULTS = Path("results")
# A process may give itself any name of 15 characters.
RENAMED = "open('/proc/self/comm', 'w').write('\\x1b[2J\\x07\\nwattdock'); print(flush=True); input()"
# As a file's name it holds no slash; each of two results needs its own.
NAMES = [f"2026010{day}T000000-{HOSTILE}" for day in (1, 2)]


def texts(part: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where texts stand in a document."""
    if isinstance(part, str):
        yield place
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, child in items:
        yield from texts(child, (*place, key))


@functools.cache
def hostile_document() -> str:
    """Return a result in which every text is hostile that a reader of results takes."""
    failure = {"kind": "E", "message": "m", "stage": "load", "exit_code": 5, "cause": "hang", "advice": "a"}
    made = document({"study": {"study_id": "s", "attempt": 1}, "error": failure})
    for *parents, last in list(texts(made)):
        part: Any = made
        for parent in parents:
            part = part[parent]
        before, part[last] = part[last], HOSTILE
        try:
            ExperimentResult.model_validate(made)
        except ValidationError:
            part[last] = before
    return json.dumps(made)


@pytest.fixture
def hostile(called: Called) -> Called:
    """Two results, all of whose texts are hostile, in folders of hostile names; and one that cannot be read."""
    for number, name in enumerate(NAMES):
        folder = RESULTS / name
        folder.mkdir(parents=True)
        made = json.loads(hostile_document()) | {"experiment_id": str(number) * 64, "status": "ok"}
        (folder / "result.json").write_text(json.dumps(made))
        complete(folder)
    (RESULTS / f"broken{HOSTILE}").mkdir()
    (RESULTS / f"broken{HOSTILE}" / "result.json").write_text("{")
    return called


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("results", "list", "--all"), 0),
        (("results", "list", "--json"), 0),
        (("results", "query", "SELECT * FROM results"), 0),
        (("results", "query", "SELECT chr(27) || '[2J' AS \"a\x1b[2J\", chr(155), chr(8238)"), 0),
        (("results", "query", "SELECT \x1b[2J"), 2),
        (("results", "export", "--csv", f"{HOSTILE}.csv"), 0),
        (("results", "list", "--where", HOSTILE), 2),
        (("show", "20260101T000000"), 0),
        (("show", "20260101T000000", "--json"), 0),
        (("show", HOSTILE), 7),
        (("show", "results"), 7),
        (("show", f"results/broken{HOSTILE}"), 7),
        (("compare", "20260101", "20260102"), 10),
        (("report", "20260101", "-o", f"{HOSTILE}.html"), 0),
        (("plot", "table", "20260101", "-o", f"{HOSTILE}.md"), 0),
        (("bundle", "create", "20260101", "-o", f"{HOSTILE}.tar"), 2),
        (("bundle", "verify", HOSTILE), 2),
        (("run", "--backend", HOSTILE), 2),
        (("run", "--model", HOSTILE), 2),
        (("run", f"{HOSTILE}.yaml"), 2),
        (("plan", "--set", HOSTILE), 2),
        (("estimate", HOSTILE), 2),
        ((HOSTILE,), 2),
        (("run", f"--{HOSTILE}"), 2),
    ],
)
def test_no_verb_prints_codes(hostile: Called, words: tuple[str, ...], code: int) -> None:
    """Of results, of folders, of a query's answer, and of what was typed."""
    done = hostile(*words)
    assert steers(done.stdout + done.stderr) == []
    assert (done.returncode, bool(done.stdout + done.stderr)) == (code, True), done.stderr


def test_a_table_in_a_file_steers_no_terminal_that_shows_it(hostile: Called) -> None:
    """Markdown and LaTeX are read by people."""
    held = {}
    for suffix in ("md", "tex"):
        assert hostile("plot", "table", "20260101", "-o", f"x.{suffix}").returncode == 0
        held[suffix] = Path(f"x.{suffix}").read_text()
    assert {suffix: bool(steers(text)) for suffix, text in held.items()} == {"md": False, "tex": False}


def test_a_study_that_is_planned_and_run_prints_no_codes(called: Called) -> None:
    """Names, models, labels and settings of a stranger's file, and what is wrong with it."""
    small = {"backend": "fake", "model": "shape:tiny-llama", "repeats": {"passes": 1}}
    studies: dict[str, tuple[dict[str, Any], int]] = {
        "named": ({**small, "name": HOSTILE, "runner_python": f"./{HOSTILE}"}, 0),
        "model": ({**small, "model": HOSTILE}, 2),
        "setting": ({**small, HOSTILE: 1}, 2),
        "value": ({**small, "launcher": HOSTILE}, 2),
    }
    for name, (experiment, code) in studies.items():
        Path("x.yaml").write_text(
            json.dumps({"name": HOSTILE if name == "named" else "s", "experiments": [experiment]})
        )
        for verb in ("plan", "run")[: 2 if code else 1]:
            done = called(verb, "x.yaml")
            assert steers(done.stdout + done.stderr) == [], (name, verb)
            assert done.returncode == code, (name, verb, done.stderr)


def test_a_bundle_prints_no_codes(called: Called, tmp_path: Path) -> None:
    """Its name, what it lacks, what is wrong with it, and the results that it holds."""
    made = bundled(
        stored(tmp_path / "results", name="20260101T000000-a", **{"config.name": HOSTILE}), tmp_path / "b.tar"
    )
    folder = unpacked(made.path, tmp_path)
    manifest = folder / "bundle.json"
    changed = json.loads(manifest.read_text()) | {"name": HOSTILE, "missing": [HOSTILE]}
    for content, code in ((changed, 0), (changed | {HOSTILE: 1}, 7), (changed | {"results": {HOSTILE: 0}}, 7)):
        manifest.write_text(json.dumps(content))
        sealed(folder)
        for words in (("bundle", "verify"), ("show",)):
            done = called(*words, folder)
            assert steers(done.stdout + done.stderr) == [], words
            assert done.returncode == code, done.stderr
    with tarfile.open(tmp_path / "c.tar", "w") as packed:
        packed.addfile(tarfile.TarInfo(f"b/{HOSTILE}"))
    done = called("bundle", "verify", tmp_path / "c.tar")
    assert (done.returncode, steers(done.stderr)) == (7, [])


def test_processes_and_holders_of_gpus_print_no_codes(
    library: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process and a measurement have the names that their owners chose."""
    holder = leases.Holder(HOSTILE, 1, HOSTILE, HOSTILE)
    monkeypatch.setattr(leases, "holders", lambda *_: {fake_nvml.uuid_of(1): holder, leases.MACHINE: holder})
    with subprocess.Popen([sys.executable, "-c", RENAMED], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        gpu = FakeGpu(uuid=fake_nvml.uuid_of(1), name=f"NVIDIA {CODES[1]}", processes=(FakeProcess(process.pid),))
        try:
            with fake_nvml.loaded(library, gpus=(gpu,), virtual_clock=False):
                done = called("gpus")
        finally:
            process.kill()
    assert done.returncode == 0, done.stderr
    assert f"process {process.pid} (" in done.stdout
    assert "\N{REPLACEMENT CHARACTER}[2J" in done.stdout
    assert steers(done.stdout + done.stderr) == []

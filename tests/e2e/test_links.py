"""A real neighbour's links into what only the victim may read: nothing of it gets into what the victim hands out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, Command, one_line
from make import models as tiny
from unprivileged import OTHER_UID, give_to_user, kernel_protection, popen_as_user

from wattdock.config import load_study
from wattdock.errors import ConfigError
from wattdock.files import JOURNAL, STUDIES
from wattdock.study import find_study

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
CONFIG, PREFLIGHT, STORE = 2, 3, 7
SECRET = "the-victims-secret"
RESULTS, CLOSED, PRIVATE = "results", "closed", "closed/results"


@pytest.fixture
def victim(wattdock: Command) -> Iterator[Command]:
    """A folder of results that all may write to, one result in it, and results and files that only the victim sees.

    The kernel guards nothing: what wattdock refuses itself is what counts.
    """
    for name in (RESULTS, f"{RESULTS}/{STUDIES}"):
        folder = wattdock.folder / name
        folder.mkdir()
        folder.chmod(0o1777)
    study = wattdock.write("{name: open-name, backend: fake, model: {shape: tiny-llama}, repeats: {passes: 1}}")
    done = wattdock("run", study)
    assert done.returncode == 0, done.stderr
    (wattdock.folder / CLOSED).mkdir()
    give_to_user(wattdock.folder / CLOSED)
    private = shutil.copytree(wattdock.folder / RESULTS, wattdock.folder / PRIVATE)
    (private / "secret.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "x": SECRET}))
    for path in sorted(private.rglob("*"), reverse=True):
        if path.suffix in (".json", ".jsonl"):
            path.write_text(path.read_text().replace("open-name", SECRET))
        give_to_user(path)
        path.rename(path.with_name(path.name.replace("open-name", SECRET).replace("-fake-", "-fake-5ec2")))
    give_to_user(private)
    (private / "secret.json").chmod(0o600)
    (wattdock.folder / CLOSED).chmod(0o700)
    with kernel_protection(0):
        yield wattdock


def as_neighbour(wattdock: Command, script: str) -> None:
    """Run a shell script as the neighbour, with `ours` and `secret` for the victim's results' names."""
    ours, secret = (only_result(wattdock, folder).name for folder in (RESULTS, PRIVATE))
    env = {"HOME": str(wattdock.home), "ours": ours, "secret": secret, "private": str(wattdock.folder / PRIVATE)}
    env["closed"] = str(wattdock.folder / CLOSED)
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True}
    with popen_as_user(["/bin/sh", "-ec", script], env=env, cwd=wattdock.folder, uid=OTHER_UID, **options) as neighbour:
        _, err = neighbour.communicate(timeout=60)
    assert neighbour.returncode == 0, err


def only_result(wattdock: Command, folder: str) -> Path:
    return next(path for path in (wattdock.folder / folder).glob("2*-fake-*") if not path.name.endswith("00000000"))


# The neighbour's copy of the victim's published result, under a name of its own.
COPY = "cd results; cp -r $ours 20990101T000000-fake-00000000; cd 20990101T000000-fake-00000000"
THEIRS = f"{RESULTS}/20990101T000000-fake-00000000"


# What the neighbour puts in place of the copy's own, and whether the kernel guards links.
LINKS = (
    (0, "ln -s $private/secret.json more.json"),
    (0, "rm -r restarts; ln -s $private/$secret/restarts restarts"),
    (0, "rm result.json; ln -s $private/$secret/result.json result.json"),
    (0, "cd ..; rm -r 2099*; ln -s $private/$secret 20990101T000000-fake-00000000"),
    (1, "cd ..; rm -r 2099*; ln -s $private/$secret 20990101T000000-fake-00000000"),
    # Where links guard nothing, a second name of the victim's file.
    (0, "ln ../../closed/results/secret.json more.json 2>/dev/null || ln -s $private/secret.json more.json"),
)


def test_a_bundle_holds_nothing_that_the_maker_of_a_result_could_not_read(victim: Command) -> None:
    """The victim bundles a neighbour's result."""
    for guards, script in LINKS:
        (victim.folder / CLOSED).chmod(0o711)
        as_neighbour(victim, f"{COPY}; {script}")
        (victim.folder / CLOSED).chmod(0o700)
        # What was there before is put back behind the test.
        for file in Path("/proc/sys/fs").glob("protected_*"):
            file.write_text(str(guards))
        made = victim("bundle", "create", THEIRS, "--output", "x.tar")
        # Where the kernel guards, nobody follows another user's link in a folder that all may write to.
        says = ("is a link of user 1501", "to user 1501", "Permission denied")
        assert any(words in made.stderr for words in says), (script, made.stderr)
        one_line(made, CONFIG if "Permission" in made.stderr else STORE)
        assert not (victim.folder / "x.tar").exists()
        theirs = victim.folder / THEIRS
        theirs.unlink() if theirs.is_symlink() else shutil.rmtree(theirs)


def test_a_bundle_takes_no_journal_that_the_maker_of_a_result_only_links_to(victim: Command) -> None:
    """A result names its study, and a link in that study's name leads to the victim's own file."""
    as_neighbour(
        victim,
        f"""{COPY}; rm SHA256SUMS; sed -i 's/"study_id": "[^"]*"/"study_id": "20990101T000000-x-1"/' result.json
        mkdir ../studies/20990101T000000-x-1; ln -s $private/secret.json ../studies/20990101T000000-x-1/journal.jsonl
        """,
    )
    made = victim("bundle", "create", THEIRS, "--output", "x.tar")
    if made.returncode == 0:
        with tarfile.open(victim.folder / "x.tar") as tar:
            assert not [name for name in tar.getnames() if name.endswith(JOURNAL)]
    else:
        one_line(made, STORE, "to user 1501")


def test_a_neighbour_s_result_shows_nothing_of_the_victim_s(victim: Command) -> None:
    """Not in what is printed, nor in a page or a table that is written for others."""
    as_neighbour(victim, f"{COPY}; rm -r restarts result.json; for name in restarts result.json; do "
                 "ln -s $private/$secret/$name $name; done")  # fmt: skip
    for words in (
        ("show", THEIRS),
        ("show", "20990101"),
        ("report", THEIRS, "-o", "page.html"),
        ("plot", "table", RESULTS, "-o", "table.md"),
        ("compare", THEIRS, RESULTS),
        ("results", "list"),
        ("results", "export", "all.csv"),
        ("results", "query", "SELECT name FROM results"),
    ):
        done = victim(*words)
        assert "Traceback" not in done.stderr, done.stderr
        assert SECRET not in done.stdout, words
    for file in ("page.html", "table.md", "all.csv"):
        if (path := victim.folder / file).exists():
            assert SECRET.encode() not in path.read_bytes(), file


def test_settings_of_a_study_are_of_the_journal_that_was_judged(victim: Command) -> None:
    """The neighbour's journal, which names a program, is exchanged for the victim's between reading and judging it."""
    as_neighbour(
        victim,
        "cd results/studies; mkdir 20990101T000000-mine-1; cp [0-9]*-x-1/journal.jsonl 2099*; chmod -R go-w 2099*",
    )
    # Here the victim is root.
    own = next((victim.folder / RESULTS / STUDIES).glob("*-x-1"))
    for path in (own, own / JOURNAL):
        os.chown(path, 0, 0)
    found = find_study("mine-1", victim.folder / RESULTS)
    shutil.rmtree(found.path)
    found.path.symlink_to(own)
    with pytest.raises(ConfigError, match=f" {OTHER_UID}"):
        load_study(found.settings, {})


def test_a_neighbour_s_equal_study_is_not_gone_on_with(victim: Command) -> None:
    """Its records could say anything; a person who wants it names it."""
    as_neighbour(
        victim,
        """cd results/studies; mkdir -p 20990101T000000-x-7/records; cp [0-9]*-x-1/journal.jsonl 20990101T000000-x-7
        cd 20990101T000000-x-7; sed -i '/"stored"/,$d' journal.jsonl
        id=$(sed -n 's/.*"experiments": {"\\([0-9a-f]\\{16\\}\\).*/\\1/p' journal.jsonl); test -n "$id"
        cp -r ../../$ours/restarts/0 records/$id-0-00000000; chmod -R a+rwX .""",
    )
    done = victim("run", "x.yaml", "--resume")
    assert done.returncode == 0, done.stderr
    journal = (victim.folder / RESULTS / STUDIES / "20990101T000000-x-7" / JOURNAL).read_text()
    assert '"resumed"' not in journal
    named = victim("run", "--resume", "x-7")
    one_line(named, CONFIG, f"x-7 is a study of user {OTHER_UID}; run its file as a study of yours")


def test_a_neighbour_s_model_and_prompts_give_nothing_of_the_victim_s_away(victim: Command) -> None:
    """`config.json` is kept in the record, which all may read; prompts are."""
    model = tiny.write(victim.folder / "model")
    for path in (model, *model.iterdir()):
        os.chown(path, OTHER_UID, OTHER_UID)
    model.chmod(0o755)
    as_neighbour(
        victim,
        """cd model; rm config.json; ln -s $private/secret.json config.json; cd ../results
        ln -s $private/secret.json prompts.jsonl""",
    )
    kept = {*victim.folder.glob(f"{RESULTS}/2*"), *victim.folder.glob(f"{RESULTS}/studies/*")}
    words = ("run", "--backend", "fake", "--passes", "1")
    one_line(victim(*words, "--model", "./model"), PREFLIGHT, f"is a link of user {OTHER_UID}")
    as_neighbour(victim, "mkdir -p results/llamas; ln -s $private/model results/llamas/llama")
    shutil.copytree(tiny.write(victim.folder / "plain"), victim.folder / PRIVATE / "model")
    give_to_user(victim.folder / PRIVATE / "model")
    one_line(victim(*words, "--model", f"./{RESULTS}/llamas/llama"), PREFLIGHT, f"is a link of user {OTHER_UID}")
    prompts = ("--set", f"workload.prompts.source={victim.folder}/{RESULTS}/prompts.jsonl")
    one_line(victim("run", *SMALL, *prompts), CONFIG, f"is a link of user {OTHER_UID}")
    for folder in {*victim.folder.glob(f"{RESULTS}/2*"), *victim.folder.glob(f"{RESULTS}/studies/*")} - kept:
        found = [file for file in folder.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
        assert found == []

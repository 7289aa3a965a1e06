"""Bundles: what goes in and what must not, and what one that is not as it was made is refused for."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from make.rows import document
from make.stored import bundled, sealed, stored
from refused import raises
from seams.console import bundle_view
from seams.publish import MTIME_S, pack
from unprivileged import UID

from wattdock.config import load_study
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.publish import Bundle, open_bundle, results_table, verify_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.publish import CreatedBundle

GOOD = "b/good.txt"


def verify(path: Path) -> Bundle:
    """Verify a bundle in place and unpacked, which agree."""
    try:
        checked = verify_bundle(path)
    except StoreError as error:
        with raises(StoreError, error, cause=error.cause), open_bundle(path):
            pass
        raise
    with open_bundle(path) as opened:
        assert vars(opened) == vars(checked) | {"folder": opened.folder}
        return opened


def unpacked(path: Path, into: Path) -> Path:
    with tarfile.open(path) as file:
        file.extractall(into, filter="data")
        return into / file.getnames()[0].partition("/")[0]


@pytest.fixture
def bundle(tmp_path: Path) -> CreatedBundle:
    return bundled(stored(tmp_path / "results"), tmp_path / "b.tar")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundled(stored(tmp_path / "results"), tmp_path / "b.tar")
    return unpacked(tmp_path / "b.tar", tmp_path)


def test_results_are_bundled_byte_for_byte_and_logs_only_where_asked_for(tmp_path: Path) -> None:
    """What was measured is never rewritten; a log may hold anything."""
    result = stored(tmp_path / "results")
    for name, logs in (("a", False), ("b", True)):
        bundled(result, tmp_path / f"{name}.tar", logs=logs)
        place = unpacked(tmp_path / f"{name}.tar", tmp_path) / "results" / result.name
        files = {file.relative_to(result) for file in result.rglob("*") if file.is_file()}
        wanted = {file for file in files if logs or file.suffix != ".log"}
        assert {file.relative_to(place) for file in place.rglob("*") if file.is_file()} == wanted
        assert all((place / file).read_bytes() == (result / file).read_bytes() for file in wanted)


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    """Whoever bundles them, whenever, and whatever the file is called."""
    result = stored(tmp_path / "results")
    bundled(result, tmp_path / "b.tar")
    shutil.copytree(tmp_path / "results", tmp_path / "again/results")
    bundled(tmp_path / "again/results" / result.name, tmp_path / "again/other.tar")
    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "again/other.tar").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "token hf_abcdefghijklmnopqrstuvwxyz0123 used",
        "Authorization: Bearer abcdefghijklmnop.qrst",
        "https://alice:s3cr3t@packages.example/simple",
        "OPENAI_API_KEY=verysecretvalue",
        "key AKIAABCDEFGHIJKLMNOP",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ",
        'answered {"auth_token": "sesame-9-open"}',
        "a-token-of-no-known-shape",
        "ray://:pw@head:6379",
        "https://tok@host/simple",
        "https://host/v1?token=abcd",
        "AccountName=x;AccountKey=abcdefgh==;EndpointSuffix=core.example",
        "https://hooks.slack.com/services/T000/B000/abcdefgh",
        "https://bucket.example/w?X-Amz-Signature=0123456789abcdef",
        "key x7Kq9ZbW2mTfV4nLpR8sYcD3 taken",
    ],
)
def test_a_secret_is_refused_in_a_result_a_log_and_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """By its shape, its setting's name, or as the value of a secret variable; the file is named, not the secret."""
    monkeypatch.setenv("HF_TOKEN", "a-token-of-no-known-shape")
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text(text)
    assert bundled(folder, tmp_path / "without.tar").digest
    with raises(ConfigError, "runner.log", cause=Cause.SECRET):
        bundled(folder, tmp_path / "b.tar", logs=True)
    failure = {"kind": "RunnerError", "message": text, "stage": "load", "exit_code": 5}
    with raises(ConfigError, "result.json", cause=Cause.SECRET) as caught:
        bundled(stored(tmp_path / "other", error=failure), tmp_path / "b.tar")
    assert text not in str(caught.value)
    assert not list(tmp_path.glob("*b.tar*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_what_another_users_link_leads_to_is_not_bundled(tmp_path: Path) -> None:
    """A colleague's result could publish any file that only its bundler can read."""
    result = stored(tmp_path / "results")
    (tmp_path / "diary").write_text("dear diary")
    (result / "notes.json").symlink_to(tmp_path / "diary")
    bundled(result, tmp_path / "ours.tar")
    os.chown(result / "notes.json", UID, UID, follow_symlinks=False)
    with raises(StoreError, "notes.json", UID, cause=Cause.OTHERS_COULD_WRITE):
        bundled(result, tmp_path / "theirs.tar")


@pytest.mark.parametrize("text", ["max_output_tokens: 12345678", "t512 t513", "GPU-1b2c", "tokens=100000000", "sk-8"])
def test_ordinary_text_is_no_secret(tmp_path: Path, text: str) -> None:
    """Figures must not go for keys."""
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text(text)
    assert bundled(folder, tmp_path / "b.tar", logs=True).digest


def test_files_that_hold_our_own_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replaced; whoever hands a bundle out decides."""
    for name in ("USER", "HOME", "HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOGNAME", "quentina")
    monkeypatch.setattr("platform.node", lambda: "frigg-1")
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text("loaded /home/quentina/model")
    made = bundled(folder, tmp_path / "b.tar", logs=True)
    assert made.identifying_files == (f"results/{folder.name}/runner.log",)
    assert bundled(folder, tmp_path / "c.tar").identifying_files == ()
    monkeypatch.setenv("HOME", "/root")
    (folder / "runner.log").write_text("loaded /root/.local/share/wattdock/model")
    assert bundled(folder, tmp_path / "d.tar", logs=True).identifying_files == (f"results/{folder.name}/runner.log",)


def test_prompts_are_bundled_while_they_are_those_that_were_sent(tmp_path: Path) -> None:
    """By their hash; what is missing is said."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Write"}')
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    sample = document()
    environment = sample["environment"] | {"dataset": str(prompts), "dataset_sha256": digest}
    config = sample["config"]
    config["workload"]["prompts"]["source"] = str(prompts)
    folder = stored(tmp_path / "results", environment=environment, config=config)
    made = bundled(folder, tmp_path / "b.tar")
    place = unpacked(made.path, tmp_path) / f"prompts/{digest[:16]}.jsonl"
    assert place.read_bytes() == prompts.read_bytes()
    assert digest in bundled(folder, tmp_path / "c.tar", prompts=False).manifest.missing[0]
    prompts.write_text("{}")
    assert digest in bundled(folder, tmp_path / "d.tar").manifest.missing[0]
    prompts.unlink()
    assert os.strerror(errno.ENOENT) in bundled(folder, tmp_path / "e.tar").manifest.missing[0]


def test_results_of_two_studies_may_share_a_name(tmp_path: Path) -> None:
    """Experiments of the bundle's one study may not, and it is read to reproduce them."""
    config = document()["config"] | {"name": "same"}
    for count in (1, 2):
        name = f"2026010{count}T000000-pytorch-0123abcd"
        stored(tmp_path / "results", name=name, config=config | {"power_limit_w": 60.0 + count})
    made = bundled(tmp_path / "results", tmp_path / "b.tar")
    study = load_study(unpacked(made.path, tmp_path) / "study.yaml", {})
    assert [experiment.name for experiment in study.experiments] == ["same", "same (2)"]


def test_a_lock_of_images_goes_in_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results cite its hash."""
    lock = tmp_path / "images.lock"
    lock.write_text("images: {}\n")
    folder = stored(tmp_path / "results")
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", str(lock))
    made = bundled(folder, tmp_path / "b.tar")
    assert (unpacked(made.path, tmp_path) / "images.lock").read_bytes() == lock.read_bytes()


def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    """Nothing is left of the bundle."""
    folder = stored(tmp_path / "results")
    (folder / "runner.log").unlink()
    (folder / "runner.log").symlink_to("/proc/self/mem")
    with raises(StoreError, os.strerror(errno.EIO)):
        bundled(folder, tmp_path / "c.tar", logs=True)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("name", ["b", ".b.tar", "no/b.tar"])
def test_a_name_that_no_bundle_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """One file that ends in .tar, in a folder that is there."""
    with raises(ConfigError, name.partition("/")[0]):
        bundled(stored(tmp_path / "results"), tmp_path / name)


def test_a_bundle_verifies_as_a_tar_file_and_unpacked_with_one_digest(bundle: CreatedBundle, tmp_path: Path) -> None:
    """The digest stands for the files, however they are packed."""
    assert verify(bundle.path).digest == bundle.digest == verify(unpacked(bundle.path, tmp_path / "out")).digest


def test_one_flipped_bit_anywhere_is_found(bundle: CreatedBundle, tmp_path: Path) -> None:
    """In content, in the tar file's headers, in padding and in the end: a prime step meets all of them."""
    whole = bundle.path.read_bytes()
    broken = tmp_path / "broken.tar"
    places = [*range(0, len(whole), 509), *range(0, 512, 7), len(whole) - 1]
    missed = []
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        broken.write_bytes(changed)
        try:
            verify(broken)
        except StoreError:
            continue
        missed.append(place)
    assert not missed


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 2.0])
def test_a_tar_file_that_is_cut_short_or_goes_on_behind_its_end_is_refused(bundle: CreatedBundle, share: float) -> None:
    """At any length, whole blocks or not; some programs read a second archive behind the first."""
    whole = bundle.path.read_bytes()
    for length in (int(len(whole) * share), int(len(whole) * share) // 512 * 512):
        bundle.path.write_bytes((whole + whole)[:length])
        with raises(StoreError, "b.tar", cause=Cause.DAMAGED):
            verify(bundle.path)


@pytest.mark.parametrize("name", ["other/good.txt", "b/README.md"])
def test_a_file_beside_the_bundles_folder_or_a_name_told_twice_is_refused(bundle: CreatedBundle, name: str) -> None:
    """Neither stands in the list of hashes."""
    with tarfile.open(bundle.path, "a") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with raises(StoreError, "b.tar"):
        verify(bundle.path)


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ("lost", ["missing", "/requests.parquet"]),
        ("changed", ["changed", "/requests.parquet"]),
        ("moved", ["/requests.parquet", "/other.parquet"]),
        ("linked", ["/requests.parquet"]),
        ("results/more.txt", ["results/more.txt"]),
        (".hidden", [".hidden"]),
        ("without sums", ["SHA256SUMS"]),
    ],
)
def test_a_folder_that_was_changed_is_refused_with_what_was(folder: Path, change: str, files: list[str]) -> None:
    """One line names the file."""
    file = folder / "SHA256SUMS" if change == "without sums" else next(folder.rglob("requests.parquet"))
    if change == "changed":
        file.write_bytes(b"other")
    elif change in ("moved", "linked"):
        moved = file.rename(file.with_name("other.parquet") if change == "moved" else folder.parent / "elsewhere")
        if change == "linked":
            file.symlink_to(moved)
    elif change in ("lost", "without sums"):
        file.unlink()
    else:
        (folder / change).write_text("more")
    with raises(StoreError, *files):
        verify(folder)


def _tar(path: Path, *infos: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for info in infos:
            file.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def _info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime = kind, link, MTIME_S
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        *(_info("../evil"), _info("/etc/evil"), _info("b/../../evil"), _info("b/.bashrc"), _info("b/x\\..\\evil")),
        *(_info("b/link", tarfile.SYMTYPE, "/etc/passwd"), _info("b/link", tarfile.LNKTYPE, GOOD)),
        *(_info("b/pipe", tarfile.FIFOTYPE), _info("b/device", tarfile.CHRTYPE), _info("b/folder", tarfile.DIRTYPE)),
        *(_info(f"b/h{name}") for name in ("\u202efdp.exe", "/\uff0e\uff0e/x", "e\u0301", "\nb", "\0b", "//b", "/")),
        *(_info("b/sparse", tarfile.GNUTYPE_SPARSE), _info("b/" + "h/" * 500 + "x"), _info("b/" + "h" * 5_000)),
    ],
    ids=lambda info: ascii(info.name[:20]),
)
def test_a_hostile_tar_file_is_refused_and_writes_nothing_outside(tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    """Nor does it stay unpacked anywhere."""
    path = _tar(tmp_path / "hostile.tar", _info(GOOD), hostile)
    with raises(StoreError, path) as error, open_bundle(path):
        pytest.fail("it was opened")
    assert len(str(error.value).replace(str(path), "")) < 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile.tar"]


def test_a_bundle_is_verified_without_room_and_unpacked_only_where_there_is_room(
    bundle: CreatedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's file must not fill the disk before it is known to be whole."""
    room = shutil.disk_usage("/")._replace(free=bundle.path.stat().st_size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert verify_bundle(bundle.path).digest == bundle.digest
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    with raises(StoreError, "TMPDIR", cause=Cause.NO_SPACE), open_bundle(bundle.path):
        pytest.fail("it was unpacked")


def test_more_files_than_any_bundle_has_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file takes 512 bytes of a tar file, and as much memory."""
    monkeypatch.setattr("wattdock.publish.bundle.MOST_BYTES", 10_000)
    path = _tar(tmp_path / "many.tar", *(_info(f"b/{number:03}") for number in range(200)))
    with raises(StoreError, "SHA256SUMS"):
        verify_bundle(path)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE, size_bytes: int = 0) -> bytes:
    """Return an extended header of a tar file; `records` may be anything."""
    info = _info("pax", kind)
    info.size = size_bytes or len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % tarfile.BLOCKSIZE)


@pytest.mark.parametrize(
    "headers",
    [
        pax(b"11 path=b/\n") * 5_000,
        pax(b"9 a=1\n", tarfile.XGLTYPE) * 5_000,
        pax(b"", size_bytes=300_000_000),
        pax(b"19 size=99999999999\n"),
        pax(b"9 size=-1\n"),
        pax(b"11 size=-1\n"),
        pax(b"x" * 4_000),
        _info("b/big").tobuf().replace(b"00000000000\0", b"77777777777\0", 1),
    ],
    ids=["chain", "global", "large", "size", "wrong length", "negative", "rubbish", "cut"],
)
def test_headers_that_claim_or_chain_without_end_cost_no_memory(tmp_path: Path, headers: bytes) -> None:
    """Python's own reader would read them whole, or call itself until it breaks off."""
    path = tmp_path / "hostile.tar"
    path.write_bytes(headers + _info(GOOD).tobuf())
    os.truncate(path, 400_000_000)
    tracemalloc.start()
    try:
        with raises(StoreError, "hostile.tar"):
            verify_bundle(path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_name_that_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    """Both cannot be unpacked."""
    files = dict.fromkeys(("x", "x.y", "x/y/z"), b"")
    with (tmp_path / "b.tar").open("wb") as file:
        pack(files, file, top="b")
    with raises(StoreError, "b.tar", cause=Cause.DAMAGED):
        verify(tmp_path / "b.tar")


def test_a_bundle_packed_anew_is_refused_with_what_to_do(bundle: CreatedBundle, tmp_path: Path) -> None:
    """Its files may be whole: as a folder, it verifies."""
    folder = unpacked(bundle.path, tmp_path / "out")
    with tarfile.open(tmp_path / "anew.tar", "w") as file:
        file.add(folder, folder.name)
    with raises(StoreError, "anew.tar"):
        verify(tmp_path / "anew.tar")
    assert verify(folder).digest == bundle.digest


def test_a_manifest_that_names_other_results_is_refused(folder: Path) -> None:
    """Also where the list of hashes was made to fit."""
    text = (folder / "bundle.json").read_text()
    (folder / "bundle.json").write_text(text.replace("20260101T000000", "20270101T000000"))
    with raises(StoreError, "bundle.json", "'20270101T000000-"):
        verify(sealed(folder))


def test_what_would_be_run_again_under_one_id_is_all_in_the_study(tmp_path: Path) -> None:
    """An id is only what a result says of itself."""
    config = document()["config"]
    other = config | {"workload": config["workload"] | {"batch_size": 77}}
    results = stored(tmp_path / "results", config=other).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", config=config | {"name": "again"})
    stored(results, name="20260101T000002-pytorch-0123abcd")
    manifest = bundled(results, tmp_path / "b.tar").manifest
    experiments = yaml.safe_load((unpacked(tmp_path / "b.tar", tmp_path) / "study.yaml").read_text())["experiments"]
    assert [experiment["workload"]["batch_size"] for experiment in experiments] == [77, 2]
    assert list(manifest.results.values()) == [0, 1, 1]


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"results": {}}])
def test_a_manifest_of_another_schema_is_refused(folder: Path, change: dict[str, Any]) -> None:
    """What it would mean is not known here."""
    manifest = json.loads((folder / "bundle.json").read_text()) | change
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with raises(StoreError, next(iter(change)), cause=Cause.VERSION):
        verify(sealed(folder))


def test_a_bundle_is_never_overwritten(bundle: CreatedBundle, tmp_path: Path) -> None:
    """What is published under a name stays what it is."""
    with raises(StoreError, "b.tar"):
        bundled(tmp_path / "results", bundle.path)
    assert verify(bundle.path).digest == bundle.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "results"]


def test_a_bundle_names_the_code_that_measured(tmp_path: Path) -> None:
    """Not the checkout that it was made in: who cites it cites what measured."""
    first, second = "e" * 40, "f" * 40
    environment = document()["environment"] | {"wattdock_version": "0.1.0"}
    results = stored(
        tmp_path / "results", environment=environment | {"wattdock_commit": second, "wattdock_dirty": True}
    ).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", environment=environment | {"wattdock_commit": first})
    made = bundled(results, tmp_path / "b.tar")
    readme = (unpacked(made.path, tmp_path) / "README.md").read_text()
    assert ("0.1.0" in readme, f"{first} and" in readme, f"{second} with changes" in readme) == (True, True, True)
    with open_bundle(made.path) as opened:
        assert results_table(opened.results()) in readme
        assert re.search(r"files, \d+\.\d kB$", str(next(iter(bundle_view(opened)))))

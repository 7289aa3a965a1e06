"""A bundle that is not as it was made is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from make.stored import bundled, sealed, unpacked
from refused import raises
from seams.publish import MTIME_S, pack

from wattdock.errors import Cause, StoreError
from wattdock.publish import Bundle, open_bundle, verify_bundle

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

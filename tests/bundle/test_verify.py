"""What a bundle that is not as it was made is refused for."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from stored_results import SAMPLE, bundled, stored

from wattdock.errors import StoreError
from wattdock.publish.create import hashes
from wattdock.publish.manifest import sums_text
from wattdock.publish.verify import opened, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.publish.create import Created

GOOD = "b/good.txt"
OLD = Path(__file__).parents[1] / "data/h200-study.tar"


@pytest.fixture
def bundle(tmp_path: Path) -> Created:
    return bundled(stored(tmp_path / "results"), tmp_path / "b.tar")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundled(stored(tmp_path / "results"), tmp_path / "b")
    return tmp_path / "b"


def test_a_bundle_verifies_as_a_tar_file_and_unpacked_with_one_digest(bundle: Created, tmp_path: Path) -> None:
    """The digest stands for the files, however they are packed."""
    with tarfile.open(bundle.path) as file:
        file.extractall(tmp_path / "out", filter="data")
    assert verify(bundle.path).digest == bundle.digest == verify(tmp_path / "out" / "b").digest


def test_one_flipped_bit_anywhere_is_found(bundle: Created, tmp_path: Path) -> None:
    """In content, in the tar file's headers, in padding and in the end: a prime step meets all of them."""
    whole = bundle.path.read_bytes()
    broken = tmp_path / "broken.tar"
    places = [*range(0, len(whole), 251), *range(512), len(whole) - 1]
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


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_tar_file_that_is_cut_short_is_refused(bundle: Created, share: float) -> None:
    """At any length, whole blocks or not."""
    whole = bundle.path.read_bytes()
    for length in (int(len(whole) * share), int(len(whole) * share) // 512 * 512):
        bundle.path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"cut short|does not end"):
            verify(bundle.path)


def test_what_follows_the_end_is_refused(bundle: Created) -> None:
    """A second archive behind the first is read by some programs and not by others."""
    whole = bundle.path.read_bytes()
    bundle.path.write_bytes(whole + whole)
    with pytest.raises(StoreError, match="does not end"):
        verify(bundle.path)


def _missing(folder: Path) -> None:
    next(folder.rglob("runner.log")).unlink()


def _added(folder: Path) -> None:
    (folder / "results" / "more.txt").write_text("more")


def _changed(folder: Path) -> None:
    next(folder.rglob("runner.log")).write_text("other")


def _moved(folder: Path) -> None:
    log = next(folder.rglob("runner.log"))
    log.rename(log.with_name("other.log"))


def _linked(folder: Path) -> None:
    log = next(folder.rglob("runner.log"))
    shutil.copyfile(log, folder.parent / "elsewhere")
    log.unlink()
    log.symlink_to(folder.parent / "elsewhere")


def _hidden(folder: Path) -> None:
    (folder / ".hidden").write_text("more")


def _no_sums(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_missing, r"missing: results/.*/runner\.log"),
        (_added, r"not in the list: results/more\.txt"),
        (_changed, r"changed: results/.*/runner\.log"),
        (_moved, r"missing: .*runner\.log; not in the list: .*other\.log"),
        (_linked, r"runner\.log', a link or device"),
        (_hidden, r"'\.hidden', which is no name"),
        (_no_sums, "has no SHA256SUMS"),
    ],
)
def test_a_folder_that_was_changed_is_refused_with_what_was(
    folder: Path, change: Callable[[Path], None], said: str
) -> None:
    """One line names the file."""
    change(folder)
    with pytest.raises(StoreError, match=said):
        verify(folder)


def _tar(path: Path, *infos: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for info in infos:
            file.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def _info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (_info("../evil"), "outside its folder"),
        (_info("/etc/evil"), "outside its folder"),
        (_info("b/../../evil"), "outside its folder"),
        (_info("b/.bashrc"), "or hidden"),
        (_info("b/x\\..\\evil"), "outside its folder"),
        (_info("b/link", tarfile.SYMTYPE, "/etc/passwd"), "a symbolic link"),
        (_info("b/link", tarfile.LNKTYPE, GOOD), "a hard link"),
        (_info("b/pipe", tarfile.FIFOTYPE), "neither file nor folder"),
        (_info("b/device", tarfile.CHRTYPE), "neither file nor folder"),
        (_info("b/folder", tarfile.DIRTYPE), "a folder"),
        (_info("b/GOOD.txt"), "twice"),
        (_info("other/good.txt"), "outside its folder 'b'"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_a_hostile_tar_file_is_refused_and_writes_nothing_outside(
    tmp_path: Path, hostile: tarfile.TarInfo, said: str
) -> None:
    """Nor does it stay unpacked anywhere."""
    path = _tar(tmp_path / "hostile.tar", _info(GOOD), hostile)
    with pytest.raises(StoreError, match=said), opened(path):
        pytest.fail("it was opened")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hostile.tar"]


def test_a_bundle_packed_anew_is_refused_with_what_to_do(bundle: Created, tmp_path: Path) -> None:
    """Its files may be whole: as a folder, it verifies."""
    with tarfile.open(bundle.path) as file:
        file.extractall(tmp_path / "out", filter="data")
    with tarfile.open(tmp_path / "anew.tar", "w") as file:
        file.add(tmp_path / "out" / "b", "b")
    with pytest.raises(StoreError, match="unpack it and name the folder"):
        verify(tmp_path / "anew.tar")
    assert verify(tmp_path / "out" / "b").digest == bundle.digest


def test_a_manifest_that_names_other_results_is_refused(folder: Path) -> None:
    """Also where the list of hashes was made to fit."""
    text = (folder / "bundle.json").read_text()
    (folder / "bundle.json").write_text(text.replace("20260101T000000", "20270101T000000"))
    (folder / "SHA256SUMS").write_text(sums_text(hashes(folder)))
    with pytest.raises(StoreError, match=r"bundle\.json and the files disagree"):
        verify(folder)


def sealed(folder: Path) -> Path:
    """Make the list of hashes fit whatever was changed, as whoever changes a bundle can."""
    (folder / "SHA256SUMS").write_text(sums_text(hashes(folder)))
    return folder


@pytest.mark.parametrize(
    ("field", "said"),
    [("publishable", True), ("status", "failed"), ("energy_per_output_token_j", 0.001), ("label", "another")],
)
def test_a_table_that_says_other_than_the_results_is_refused(folder: Path, field: str, said: Any) -> None:
    """With what it says, where the list of hashes was made to fit."""
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["results"][0][field] = said
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=rf"bundle\.json says {field} .* believe neither"):
        verify(sealed(folder))


@pytest.mark.parametrize("study", ["batch_size: 4", "batch_size: 4\n    batch_size: 2", "a: [", "- 1", ""])
def test_a_study_that_is_not_the_results_is_refused(folder: Path, study: str) -> None:
    """It is what a reader looks at before anything is run, and results are what `reproduce` measures again."""
    text = (folder / "study.yaml").read_text()
    (folder / "study.yaml").write_text(text.replace("batch_size: 2", study) if "batch" in study else study)
    with pytest.raises(StoreError, match=r"study\.yaml is not what|study\.yaml:\d+: .*no bundle of ours"):
        verify(sealed(folder))


def test_a_study_that_is_only_written_otherwise_is_the_same(folder: Path) -> None:
    """Its settings are compared, not how some version put them down."""
    settings = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(json.dumps(settings))
    assert verify(sealed(folder)).files


def test_what_would_be_run_again_under_one_id_is_all_in_the_study(tmp_path: Path) -> None:
    """An id is only what a result says of itself."""
    config = json.loads(SAMPLE.read_text())["config"]
    other = config | {"workload": config["workload"] | {"batch_size": 77}}
    results = stored(tmp_path / "results", config=other).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", config=config | {"name": "again"})
    stored(results, name="20260101T000002-pytorch-0123abcd")
    bundled(results, tmp_path / "b")
    experiments = yaml.safe_load((tmp_path / "b/study.yaml").read_text())["experiments"]
    assert [one["workload"]["batch_size"] for one in experiments] == [77, 2]


def test_a_bundle_from_before_some_facts_were_stored_is_whole() -> None:
    """What its table does not say is not held against its results."""
    found = verify(OLD)
    assert found.manifest.results[0].wattdock_dirty is None
    assert len(found.manifest.results) == 4


@pytest.mark.parametrize("place", ["../outside.jsonl", "/etc/hostname", "prompts/none.jsonl", "README.md"])
def test_prompts_anywhere_but_in_the_bundle_or_with_another_hash_are_refused(folder: Path, place: str) -> None:
    """A manifest must not lead to files of whoever reads it."""
    manifest = json.loads((folder / "bundle.json").read_text()) | {"prompt_files": {"0" * 64: place}}
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=rf"disagree about '{place}'"):
        verify(sealed(folder))


@pytest.mark.parametrize("change", [{"schema_version": 99}, {"results": []}])
def test_a_manifest_of_another_schema_is_refused(folder: Path, change: dict[str, Any]) -> None:
    """What it would mean is not known here."""
    manifest = json.loads((folder / "bundle.json").read_text()) | change
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=rf"not of bundle schema 1 \({next(iter(change))}"):
        verify(sealed(folder))


def test_a_bundle_is_never_overwritten(bundle: Created, tmp_path: Path) -> None:
    """What is published under a name stays what it is."""
    with pytest.raises(StoreError, match="is there already"):
        bundled(tmp_path / "results", bundle.path)
    assert verify(bundle.path).digest == bundle.digest
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.tar", "results"]


def test_a_bundle_names_the_code_that_measured_and_its_title(tmp_path: Path) -> None:
    """Not the checkout that it was made in: who cites it cites what measured."""
    one, two = "e" * 40, "f" * 40
    seen = json.loads(SAMPLE.read_text())["environment"] | {"wattdock_version": "0.1.0"}
    results = stored(tmp_path / "results", environment=seen | {"wattdock_commit": two, "wattdock_dirty": True}).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", environment=seen | {"wattdock_commit": one})
    with opened(bundled(results, tmp_path / "b.tar", title="All we have").path) as (folder, found):
        assert found.manifest.title == "All we have"
        told = (folder / "README.md").read_text()
        cited = yaml.safe_load((folder / "CITATION.cff").read_text())["references"]
    assert f"measured with wattdock 0.1.0 at commit {one} and wattdock 0.1.0 at commit {two} with changes." in told
    assert [software["commit"] for software in cited] == [one, two]

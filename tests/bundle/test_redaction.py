"""Nothing private is in a bundle, and what it stands for stays the same everywhere."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_results import SAMPLE, bundled, stored

from wattdock.errors import ConfigError, StoreError
from wattdock.publish.redaction import Private, Redactor, private_in
from wattdock.publish.verify import opened, verify
from wattdock.store.folders import load_result
from wattdock.store.tables import REQUESTS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

USER, COLLEAGUE, MACHINE = "quentina", "bartholomew", "gpu-server-7"
TOKEN, LEAKED = "a-token-of-no-known-shape", "hf_" + "q" * 30
HOST = "frigg-login-3"
PRIVATE = (USER, COLLEAGUE, MACHINE, TOKEN, LEAKED, HOST)
SAID = f"/home/{USER}/model on {HOST} and {MACHINE} by {COLLEAGUE}_2 with {TOKEN}, {LEAKED}"


@pytest.fixture(autouse=True)
def ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("HOME", f"/home/{USER}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HOSTNAME", f"{HOST}.cluster.example")


def planted(value: Any, at: str = "") -> Any:
    """Return a result's document with private words in every free text of it, and in keys where they are free."""
    if isinstance(value, dict):
        free = {f"/home/{USER}/adapter": 1} if at.endswith(("engine_args", "parallelism")) else {}
        return {key: planted(one, f"{at}.{key}") for key, one in value.items()} | free
    if isinstance(value, list):
        return [planted(one, at) for one in value]
    free_text = ("reason", "message", "figure", "warnings", "log_tail", "events", "config.name", "path")
    return f"{value} {SAID}" if isinstance(value, str) and at.endswith(free_text) else value


def everything(path: Path) -> str:
    """Return all that a reader finds in a bundle: bytes as they are, and what Parquet files hold compressed."""
    text = path.read_bytes().decode("latin-1")
    with tarfile.open(path) as file:
        for member in file.getmembers():
            content = file.extractfile(member)
            if content and member.name.endswith(".parquet"):
                table = pq.read_table(pa.BufferReader(content.read()))
                text += repr(table.to_pylist()) + repr(table.schema.metadata)
    return text


def full_result(tmp_path: Path) -> Path:
    """Return a result with private words in every file of it."""
    document = planted(json.loads(SAMPLE.read_text()))
    document["energy"]["gpu_processes"] = [
        {"gpu_uuid": "GPU-1", "pid": 7, "kind": "compute", "memory_bytes_max": 1, "first_seen_ns": 1, "last_seen_ns": 2}
        | {"user": COLLEAGUE, "command": f"{COLLEAGUE}.py"}
    ]
    folder = stored(tmp_path / "results", **document)
    (folder / "runner.log").write_text(f"{SAID}\nbytes that are no UTF-8: ")
    with (folder / "runner.log").open("ab") as log:
        log.write(b"\xff\xfe")
    row = dict.fromkeys(REQUESTS_SCHEMA.names) | {"restart": 0, "pass": 1, "index": 0, "text": SAID}
    table = pa.Table.from_pylist([row], schema=REQUESTS_SCHEMA).replace_schema_metadata({"by": USER})
    pq.write_table(table, folder / "requests.parquet")
    return folder


def study_of(folder: Path, journal: str) -> Path:
    """Put the journal of study "s" beside a result."""
    path = folder.parent / "studies/s/journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(journal)
    return path


def test_planted_names_and_secrets_are_nowhere_in_the_bundle(tmp_path: Path) -> None:
    """Users, home folders, hosts, keys of known shape and values of secret variables, compressed or not."""
    folder = full_result(tmp_path)
    assert all(word in everything_of(folder) for word in PRIVATE)
    created = bundled(folder, tmp_path / "b.tar", more_names=(MACHINE,))
    left = [word for word in PRIVATE if word in everything(created.path)]
    assert not left
    assert {one.kind for one in created.manifest.replaced} == {"user", "home", "host", "secret"}
    assert verify(created.path).files


def everything_of(folder: Path) -> str:
    texts = [(folder / name).read_bytes().decode("latin-1") for name in ("result.json", "runner.log")]
    return "".join(texts) + repr(pq.read_table(folder / "requests.parquet").to_pylist())


def test_one_name_has_one_stand_in_in_every_file(tmp_path: Path) -> None:
    """A reader can still tell that the same user stood in the log and in the process list."""
    created = bundled(full_result(tmp_path), tmp_path / "b.tar")
    with opened(created.path) as (folder, _):
        [place] = (folder / "results").glob("2*")
        result = load_result(place)
        assert result.energy
        assert result.energy.gpu_processes[0].user
        colleague = result.energy.gpu_processes[0].user
        assert colleague.startswith("user")
        assert f"by {colleague}_2" in (place / "runner.log").read_text()
        assert f"by {colleague}_2" in pq.read_table(place / "requests.parquet")["text"][0].as_py()


def test_names_stay_where_that_was_asked_for_and_secrets_do_not(tmp_path: Path) -> None:
    """No flag publishes a key."""
    created = bundled(full_result(tmp_path), tmp_path / "b.tar", keep_names=True)
    text = everything(created.path)
    assert USER in text
    assert HOST in text
    assert TOKEN not in text
    assert LEAKED not in text
    assert created.manifest.names_kept


def test_files_without_anything_private_are_kept_byte_for_byte(tmp_path: Path) -> None:
    """A redaction that finds nothing must not rewrite what was measured."""
    folder = stored(tmp_path / "results")
    with opened(bundled(folder, tmp_path / "b.tar").path) as (bundle, _):
        for file in folder.iterdir():
            assert (bundle / "results" / folder.name / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["pytorch", "ok", "batch", "status", "process", "torch", "user", "user1", "host"])
def test_a_user_named_like_a_word_of_the_result_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Backends, verdicts and fields keep their names; the same word in free text goes."""
    monkeypatch.setenv("USER", name)
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text(f"started by {name}\n")
    before = load_result(folder)
    with opened(bundled(folder, tmp_path / "b.tar").path) as (bundle, _):
        after = load_result(bundle / "results" / folder.name)
        log = (bundle / "results" / folder.name / "runner.log").read_text()
    assert (after.config["backend"], after.status) == (before.config["backend"], before.status)
    assert after.energy == before.energy
    assert log != f"started by {name}\n"


@pytest.mark.parametrize("before", ["Write to ", "Dear\n", "Dear \u00fc\n"])
def test_prompts_that_hold_a_name_are_refused_not_changed(tmp_path: Path, before: str) -> None:
    """Their hash is part of every result; a name may begin a line of a prompt."""
    import hashlib

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": f"{before}{USER}."}))
    document = json.loads(SAMPLE.read_text())
    seen = {"dataset": str(prompts), "dataset_sha256": hashlib.sha256(prompts.read_bytes()).hexdigest()}
    folder = stored(tmp_path / "results", environment=document["environment"] | seen)
    with pytest.raises(ConfigError, match="--no-prompts"):
        bundled(folder, tmp_path / "b.tar")
    created = bundled(folder, tmp_path / "b.tar", with_prompts=False)
    assert any("prompts" in line for line in created.manifest.missing)
    kept = bundled(folder, tmp_path / "c.tar", keep_names=True)
    assert list(kept.manifest.prompt_files) == [seen["dataset_sha256"]]


def test_a_lock_of_images_goes_in_as_it_is_and_with_a_secret_not_at_all(tmp_path: Path) -> None:
    """Results cite its hash; one that they cite and that is not there is named."""
    lock = tmp_path / "images.lock"
    lock.write_text("images: {}\n")
    folder = stored(tmp_path / "results")
    with opened(bundled(folder, tmp_path / "b.tar", lock=lock).path) as (bundle, _):
        assert (bundle / "images.lock").read_bytes() == lock.read_bytes()
    lock.write_text("base: https://quentina:s3cr3t@registry.example/x\n")
    with pytest.raises(ConfigError, match="a secret"):
        bundled(folder, tmp_path / "c.tar", lock=lock)


@pytest.mark.parametrize(
    ("message", "secret"),
    [
        (f"401 for token\n{LEAKED}", LEAKED),
        ("api_key=Zx9abcdef123456\nTraceback", "Zx9abcdef123456"),
        ('password="hunter2222"', "hunter2222"),
        ('answered {"auth_token": "sesame-9-open"}', "sesame-9-open"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----\n", "MIIEvQ"),
        (f"by\n{USER}", USER),
    ],
)
def test_what_json_has_to_escape_is_found_as_it_reads(tmp_path: Path, message: str, secret: str) -> None:
    """A line's end or a quotation mark before it hides nothing, in a result, a journal, or a log that quotes it."""
    failure = {"kind": "RunnerError", "message": message, "stage": "load", "exit_code": 5}
    folder = stored(tmp_path / "results", study={"study_id": "s", "attempt": 1}, error=failure)
    journal = study_of(folder, json.dumps({"event": "failed", "message": message}) + "\n")
    assert secret not in everything(bundled(folder, tmp_path / "b.tar").path)
    (folder / "runner.log").write_text(f"{json.dumps(message)}\n{message!r}\n")
    for named in (folder / "result.json", journal):
        named.write_text(named.read_text().replace(json.dumps(message), '"none"'))
    assert secret not in everything(bundled(folder, tmp_path / "c.tar").path)


def test_a_secret_that_a_setting_of_its_name_holds_goes(tmp_path: Path) -> None:
    """Its key says what it is, whatever its shape."""
    config = json.loads(SAMPLE.read_text())["config"] | {"fake": {"api_key": "p\u00e4ssw\u00f6rter"}}
    created = bundled(stored(tmp_path / "results", config=config), tmp_path / "b.tar")
    assert [one.kind for one in created.manifest.replaced] == ["secret"]


@pytest.mark.parametrize(
    ("variable", "host"),
    [
        ("VLLM_HOST_IP=10.20.30.40", "10.20.30.40"),
        ("VLLM_DP_MASTER_IP=fe80::12", "fe80::12"),
        ("RAY_ADDRESS=head-7:6379", "head-7"),
        ("RAY_ADDRESS=ray://head-7.cluster.example:10001", "head-7.cluster.example"),
        ("NCCL_COMM_ID=[fe80::12]:5555", "fe80::12"),
        ("NCCL_HOSTID=frigg", "frigg"),
    ],
)
def test_a_machine_that_a_recorded_variable_names_is_nowhere_in_the_bundle(
    tmp_path: Path, variable: str, host: str
) -> None:
    """Without its port, also where a log names it again or lists variables."""
    name, _, value = variable.partition("=")
    seen = json.loads(SAMPLE.read_text())["environment"] | {"variables": {name: value}}
    folder = stored(tmp_path / "results", environment=seen)
    (folder / "runner.log").write_text(f"joined {host}.\n")
    assert host not in everything(bundled(folder, tmp_path / "b.tar").path)
    assert Private("host", host) in private_in(f"RAY_ADDRESS=\n{variable}\nHOME=/root")


@pytest.mark.parametrize(
    "value",
    ["127.0.0.1", "127.0.1.1:80", "0.0.0.0", "localhost:6379", "::1", "auto", "local", "set", "1", "0.5", "False"],
)
def test_a_variable_that_names_no_machine_is_left_as_it_is(value: str) -> None:
    """The machine itself, a choice, a switch."""
    text = f"RAY_ADDRESS={value}\nVLLM_HOST_IP="
    assert Redactor(private_in(text)).text(text) == text


def test_a_journal_that_a_killed_study_left_is_bundled_without_its_unfinished_line(tmp_path: Path) -> None:
    """As resuming reads it; a line within it that is none is told of."""
    folder = stored(tmp_path / "results", study={"study_id": "s", "attempt": 1})
    journal = study_of(folder, '{"event": "begun"}\n{"event": "pas')
    with opened(bundled(folder, tmp_path / "b.tar").path) as (bundle, _):
        assert (bundle / "results/studies/s/journal.jsonl").read_text() == '{"event": "begun"}\n'
    journal.write_text('{"event": "beg\n{"event": "pass"}\n')
    with pytest.raises(StoreError, match=r"journal\.jsonl:1: is no journal line"):
        bundled(folder, tmp_path / "c.tar")


def _without_footer(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _without_pages(content: bytes) -> bytes:
    return content[:4] + bytes(200) + content[204:]


def _without_schema(content: bytes) -> bytes:
    end = len(content) - 8
    return content[: end - 400] + bytes(400) + content[end:]


def _no_utf8(content: bytes) -> bytes:
    return content.replace(b"prompt\xc3\xa9", b"prompt\xff\xff")


@pytest.mark.parametrize("damage", [_without_footer, _without_pages, _without_schema, _no_utf8])
def test_a_damaged_table_is_named_in_one_line(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Whatever it is that cannot be read of it."""
    folder = stored(tmp_path / "results")
    file = folder / "requests.parquet"
    row = dict.fromkeys(REQUESTS_SCHEMA.names) | {"restart": 0, "pass": 1, "index": 0, "text": "prompt\u00e9"}
    pq.write_table(pa.Table.from_pylist([row], schema=REQUESTS_SCHEMA), file, compression="none")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    with pytest.raises(StoreError, match=r"requests\.parquet: .*whole results only") as caught:
        bundled(folder, tmp_path / "b.tar")
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["results"]


def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    """Prompts that cannot be are missing, as those are that lie elsewhere."""
    unreadable = "/proc/self/mem"
    seen = json.loads(SAMPLE.read_text())["environment"] | {"dataset": unreadable, "dataset_sha256": "0" * 64}
    folder = stored(tmp_path / "results", environment=seen)
    missing = bundled(folder, tmp_path / "b.tar").manifest.missing
    assert any("cannot be read (Input/output error)" in line for line in missing)
    with pytest.raises(StoreError, match=f"{unreadable}: Input/output error"):
        bundled(folder, tmp_path / "c.tar", lock=Path(unreadable))
    (folder / "runner.log").unlink()
    (folder / "runner.log").symlink_to(unreadable)
    with pytest.raises(StoreError, match=r"runner\.log: Input/output error"):
        bundled(folder, tmp_path / "c.tar")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("token hf_abcdefghijklmnopqrstuvwxyz0123 used", "hf_abcdefghijklmnopqrstuvwxyz0123"),
        ("Authorization: Bearer abcdefghijklmnop.qrst", "abcdefghijklmnop.qrst"),
        ("https://alice:s3cr3t@pypi.example/simple", "alice:s3cr3t"),
        ("OPENAI_API_KEY=verysecretvalue", "verysecretvalue"),
        ("key AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ],
)
def test_keys_of_services_are_known_by_their_shape(text: str, secret: str) -> None:
    """Whoever's they are."""
    assert Private("secret", secret) in private_in(text)
    assert secret not in Redactor(private_in(text)).text(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("distributed_init_method=tcp://192.0.2.2:59035 backend=nccl", "192.0.2.2"),
        ("[c10d] failed to connect to [gpu-server-7]:29500", "gpu-server-7"),
        ("first\ngpu-server-7:120:377 [0] NCCL INFO Bootstrap", "gpu-server-7"),
        ("tcp://node3.cluster.example:29500", "node3.cluster.example"),
    ],
)
def test_machines_that_engines_name_in_their_logs_are_found(text: str, host: str) -> None:
    """Also where a bundle is made on another machine; a package's version is no address."""
    found = private_in(f"{text}\nnvidia-curand 10.3.7.77 at tcp://127.0.0.1:5000")
    assert Private("host", host) in found
    assert Redactor(found).text(f"{host} 10.3.7.77 127.0.0.1") == "host1 10.3.7.77 127.0.0.1"


@pytest.mark.parametrize("text", ["max_output_tokens: 12345678", "t512 t513", "GPU-1b2c", "tokens=100000000", "sk-8"])
def test_ordinary_text_holds_no_secret(text: str) -> None:
    """Figures must not go for keys."""
    assert private_in(text) == set()
    assert Redactor({Private("user", "t5"), Private("user", "max")}).text("t512 max_2 climax") == "t512 user1_2 climax"

"""What is withheld of a text, and what never is."""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wattdock.errors import LaunchError
from wattdock.launch import NoContainersError
from wattdock.records import Failure
from wattdock.secrets import WITHHELD, holds_secret, is_secret_name, withheld, withheld_values
from wattdock.study import events

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parents[1]
HEX, NAME, HOST = "0123456789abcdef", "abcdefghijklmnopqrstuvwxyz", r"[a-z]{1,9}(\.[a-z]{2,5}){1,2}"
WORDS = st.sampled_from("Llama Qwen2 Mistral Instruct 7B 70B GPTQ Int4 FP8 AWQ W4A16 Coder v0 1 5 chat hf bf16".split())
MODELS = st.builds(
    lambda org, words, mark: f"{org}/{mark.join(words)}",
    st.text(NAME, min_size=2, max_size=12),
    st.lists(WORDS, min_size=1, max_size=9),
    st.sampled_from("-_."),
)
DIGESTS = st.builds(
    lambda kind, text: kind + text, st.sampled_from(("sha256:", "")), st.text(HEX, min_size=7, max_size=64)
)
GPUS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
# As services make them: of all three kinds of characters, long.
RANDOM = st.integers().map(
    lambda seed: "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=64))
)
PART = st.one_of(
    MODELS,
    DIGESTS,
    RANDOM,
    RANDOM.map(lambda run: f"run-{run[:20]}"),
    st.text(NAME + "0123456789._-", min_size=1, max_size=20),
)
PATHS = st.builds(
    lambda start, parts: start + "/".join(parts), st.sampled_from(("/", "./", "../", "~/")), st.lists(PART, min_size=1)
)
IMAGES = st.builds(
    lambda host, model, digest: f"{host}/{model.lower()}@sha256:{digest}",
    st.sampled_from(("localhost:5000", "registry.example.org", "docker.io")),
    MODELS,
    st.text(HEX, min_size=64, max_size=64),
)
LOGINS = st.text("abcXYZ019-._~!$", min_size=1, max_size=20)


@given(
    st.one_of(MODELS, DIGESTS, GPUS, PATHS, IMAGES), st.sampled_from(("{}", '{{"model": "{}"}}', "cannot read {}: no"))
)
def test_names_paths_digests_and_images_are_never_withheld(text: str, around: str) -> None:
    """A result without them could not be repeated."""
    assert withheld(around.format(text)) == around.format(text)
    assert not holds_secret(around.format(text), {})


@pytest.mark.parametrize(
    "text",
    [
        "./rk-models-2024-finetuned-final",
        "model: run-1B3f9AbQ7zXk2PmR8vLt",
        '{"draft_model": "run-1B3f9AbQ7zXk2PmR8vLt", "path": "1B3f9AbQ7zXk2PmR8vLt.gguf"}',
        "s3://bucket/models/run-1B3f9AbQ7zXk2PmR8vLt",
        "file:///models/1B3f9AbQ7zXk2PmR8vLt",
        "rk-models-2024-finetuned-final",
        "frame #3: _ZN2at6native12_GLOBAL__N_122batch1B3f9AbQ7zXk2PmR8vLtE + 0x1f3 (libtorch_cpu.so)",
        "_RNvCs1234_7mycrate3fooB3f9AbQ7zXk2PmR8vLt",
        "docker run --user 1000:1000 -v /models/1B3f9AbQ7zXk2PmR8vLt:/m image",
        "tokens per second: 12345678, next token: something, token=self.tokenizer.eos_token",
        "commit 0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_what_looks_a_little_like_a_key_stays(text: str) -> None:
    """A model that cannot be named cannot be measured."""
    assert withheld(text) == text
    assert not holds_secret(text, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--token=abcdef123", "--token=(withheld)"),
        ("--token=abcdefghijk x", "--token=(withheld) x"),
        ('{"token": "abcdefghijk"}', '{"token": "(withheld)"}'),
        ("token=abcdefghijk", "token=(withheld)"),
        ("curl -s -u anna:hunter22 x", "curl -s -u anna:(withheld) x"),
        ("Authorization: Basic dXNlcjpw", "Authorization: Basic (withheld)"),
        ("'Cookie': 'session=abc; more=x'", "'Cookie': '(withheld)'"),
        ("Set-Cookie: session=abc; path=/", "Set-Cookie: (withheld)"),
        ("redis:///:pw@host", "redis://(withheld)host"),
        ("redis:///me:pw@host", "redis://(withheld)host"),
        ("x%3Dhf%5FabcdefghijklmnopqrstuvwxYZ", "x%3D(withheld)"),
        ("/cache/%2Fgho%5FabcdefghijklmnopqrstuvwxYZ01234", "/cache/%2F(withheld)"),
        ("wandb: login with key 0123456789abcdef0123456789abcdef01234567", "wandb: login with key (withheld)"),
        ('{"key": "0123456789abcdef0123456789abcdef01234567"}', '{"key": "(withheld)"}'),
        ("sk-abcdefghijABCDEFGHIJ0123", "(withheld)"),
        ("sk-ant-abcdefghij-klmnopqrstuv", "(withheld)"),
        ("key a1B2c3D4e5F6g7H8/9J0k1L2m3N4o5P6/7R8s9T0", "key (withheld)"),
        ("https://h.example:80/a1B2c3D4e5F6g7H8i9J0/x", "https://h.example:80/(withheld)/x"),
    ],
)
def test_a_key_is_withheld_among_harmless_lines_and_alone(text: str, said: str) -> None:
    """Whichever of the tests that spare harmless lines its line meets."""
    many = "INFO 1.2 tokens/s\n" * 3
    stored = said.replace("/(withheld)/x", "/…")
    assert withheld(text) == stored
    assert withheld(f"{many}{text}\n{many}") == f"{many}{stored}\n{many}"
    assert holds_secret(many + text, {})
    assert not holds_secret(said, {})


@pytest.mark.parametrize(
    ("address", "stored", "shown"),
    [
        ("https://huggingface.co/org/gated-repo", "https://huggingface.co/…", "https://huggingface.co/org/gated-repo"),
        ("https://me:pw@host:1/a/b?token=abcd#x", "https://host:1/…", "https://host:1/a/b"),
        ("https://host/", "https://host/", "https://host/"),
        ("https://host/x7Kq9ZbW2mTfV4nL/simple", "https://host/…", "https://host/…"),
        ("https://host/v1/5f0b02c75b57c5855da9/simple", "https://host/…", "https://host/…"),
        ("s3://bucket/org/model-1?x=1", "s3://bucket/org/model-1", "s3://bucket/org/model-1"),
        ("s3://me:pw@bucket/model", "s3://bucket/model", "s3://bucket/model"),
    ],
)
def test_a_path_is_kept_on_a_terminal_and_in_names_of_models(address: str, stored: str, shown: str) -> None:
    """It says what to do; what is stored says that there was one."""
    assert withheld(f"see {address}.") == f"see {stored}."
    assert withheld(f"see {address}.", keep_paths=True) == f"see {shown}."


@given(
    st.sampled_from(("http", "https", "ray", "redis", "postgresql", "git+https")),
    LOGINS,
    LOGINS,
    st.from_regex(HOST, fullmatch=True),
    st.integers(1, 65_535),
    st.sampled_from(("", "/simple", "/a/b?x=1", "?token=abcd", "#frag")),
)
def test_of_an_address_scheme_host_and_port_stay(
    scheme: str, user: str, password: str, host: str, port: int, path: str
) -> None:
    """Whichever part the secret is in; a path leaves a mark."""
    mark = "/…" if path.startswith("/") else ""
    for login in (f"{user}:{password}@", f":{password}@", f"{user}@"):
        address = f"{scheme}://{login}{host}:{port}{path}"
        assert withheld(f"cannot reach {address}, twice") == f"cannot reach {scheme}://{host}:{port}{mark}, twice"
        assert holds_secret(address, {})
    assert withheld(f"<{scheme}://{host}{path}>") == f"<{scheme}://{host}{mark}>"


@pytest.mark.parametrize("around", ["{}", "key {}", "-{}-", "a={},", "https://h.example:80/{}", '"{}"'])
def test_nearly_all_long_random_keys_are_withheld_whatever_their_service(around: str) -> None:
    """No list knows all shapes; one key in fifty may look like words."""
    draw = random.Random(1)
    texts = [around.format("".join(draw.choices(string.ascii_letters + string.digits, k=40))) for _ in range(500)]
    assert sum(holds_secret(text, {}) for text in texts) >= 490


@given(st.text())
@example("see https://user:pa@ss/w@host/x?y=1)")
def test_what_was_withheld_once_stays_as_it_is(text: str) -> None:
    """So a stored result is not refused by a bundle for what was withheld in it."""
    once = withheld(text)
    assert withheld(once) == once
    assert not holds_secret(once, {})


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def test_nothing_of_real_results_and_journals_is_withheld_but_paths_of_addresses() -> None:
    """Recorded restarts of all engines, the results that they give, and published measurements."""
    listed = subprocess.run(
        ["git", "ls-files", "tests/golden", "docs/measurements", "docker", "examples"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = 0
    for name in listed.stdout.split():
        if (file := REPO / name).suffix not in (".json", ".jsonl", ".tsv", ".yaml", ".md", ".lock"):
            continue
        content = file.read_text()
        assert not holds_secret(content, {}), name
        for text in texts(json.loads(content) if file.suffix == ".json" else content.splitlines()):
            seen += 1
            assert withheld(text) == text or "://" in text, (name, text)
    assert seen > 10_000


def test_a_setting_of_an_engine_is_withheld_by_its_own_name_too() -> None:
    """Where name and value are apart."""
    told = {"api_key": "plain word", "sizes": [1, 2], "nested": {"hf_token": ["plain word"]}, "dtype": "bfloat16"}
    expected = {"api_key": WITHHELD, "sizes": [1, 2], "nested": {"hf_token": [WITHHELD]}, "dtype": "bfloat16"}
    assert withheld_values(told) == expected
    assert withheld_values({"password": 12345678, "secret": None}) == {"password": WITHHELD, "secret": None}
    model = {"model": "run-1B3f9AbQ7zXk2PmR8vLt", "name": "run-1B3f9AbQ7zXk2PmR8vLt"}
    assert withheld_values(model) == model | {"name": WITHHELD}


@pytest.mark.parametrize("name", ["password", "hf_token", "token", "apiKey", "AWS_SECRET", "db_pwd"])
def test_a_name_announces_a_secret(name: str) -> None:
    """At its end only."""
    assert is_secret_name(name)
    assert not is_secret_name(f"{name}_count")
    assert not is_secret_name("pad_token")


def test_the_callers_own_secrets_are_known_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they look like, as whole words only."""
    monkeypatch.setenv("HF_TOKEN", "sesame-9")
    monkeypatch.setenv("GH_TOKEN", "opensesameopen")
    monkeypatch.setenv("A_LIMIT_PASS", "100000000")
    said = "open {}, sesame-9s and 100000000, {}"
    assert withheld(said.format("sesame-9", "opensesameopen")) == said.format(WITHHELD, WITHHELD)
    assert holds_secret("open sesame-9", os.environ)


@pytest.mark.parametrize("value", ["results", "sesame", "pass1", "/home/anna/keys", "~/my-keys/hf"])
def test_a_word_or_a_folder_is_not_withheld_wherever_it_stands(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A careless password would blank the reports of everything."""
    monkeypatch.setenv("DB_PASSWORD", value)
    assert withheld(f"the {value} are in {value}/x") == f"the {value} are in {value}/x"


def test_errors_events_and_rows_cannot_hold_a_secret() -> None:
    """Whoever words them."""
    text = "cannot reach https://me:pw@host.example/simple"
    said = "cannot reach https://host.example/…"
    assert str(LaunchError(text)) == "cannot reach https://host.example/simple"
    assert events.as_line(events.Note(text))["text"] == said
    engine = NoContainersError("no engine at tcp://me:pw@engine:2375", "start one")
    assert (engine.what, str(engine)) == (
        "no engine at tcp://engine:2375",
        "no engine at tcp://engine:2375; start one",
    )
    failure = Failure(kind="RunnerError", message=text, stage="load", exit_code=5, log_tail=text)
    assert (failure.message, failure.log_tail) == (said, said)


@pytest.mark.parametrize(
    "part",
    ["a", "--", "curl ", "a/B1", "a-", "aB1", "://", "a:b@", "token ", "key=", "a://", "x/", "-----BEGIN PRIVATE KEY"],
)
def test_no_text_takes_long(part: str) -> None:
    """A stranger's result is looked through before it is bundled."""
    text = part * (500_000 // len(part))
    started_s = time.monotonic()
    withheld(text)
    assert holds_secret(text, {}) in (True, False)
    assert time.monotonic() - started_s < 60

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
from hypothesis import given
from hypothesis import strategies as st

from wattdock.errors import LaunchError
from wattdock.execution import events
from wattdock.launch.engine import NoContainersError
from wattdock.records import Failure
from wattdock.secrets import WITHHELD, holds_secret, withheld, withheld_values

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
PATHS = st.lists(st.one_of(MODELS, DIGESTS, st.text(NAME + "0123456789._-", min_size=1, max_size=20)), min_size=1).map(
    lambda parts: "/" + "/".join(parts)
)
IMAGES = st.builds(
    lambda host, model, digest: f"{host}/{model.lower()}@sha256:{digest}",
    st.sampled_from(("localhost:5000", "registry.example.org", "docker.io")),
    MODELS,
    st.text(HEX, min_size=64, max_size=64),
)
# As services make them: of all three kinds of characters, long.
RANDOM = st.integers().map(
    lambda seed: "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=64))
)
LOGINS = st.text("abcXYZ019-._~!$", min_size=1, max_size=20)


@given(
    st.one_of(MODELS, DIGESTS, GPUS, PATHS, IMAGES), st.sampled_from(("{}", '{{"model": "{}"}}', "cannot read {}: no"))
)
def test_names_paths_digests_and_images_are_never_withheld(text: str, around: str) -> None:
    """A result without them could not be repeated."""
    assert withheld(around.format(text)) == around.format(text)
    assert not holds_secret(around.format(text), {})


@given(
    st.sampled_from(("http", "https", "ray", "redis", "postgresql", "git+https", "s3")),
    LOGINS,
    LOGINS,
    st.from_regex(HOST, fullmatch=True),
    st.integers(1, 65_535),
    st.sampled_from(("", "/simple", "/a/b?x=1", "?token=abcd", "#frag")),
)
def test_of_an_address_scheme_host_and_port_stay(
    scheme: str, user: str, password: str, host: str, port: int, path: str
) -> None:
    """Whichever part the secret is in."""
    for login in (f"{user}:{password}@", f":{password}@", f"{user}@"):
        address = f"{scheme}://{login}{host}:{port}{path}"
        assert withheld(f"cannot reach {address}, twice") == f"cannot reach {scheme}://{host}:{port}, twice"
        assert holds_secret(address, {})
    assert withheld(f"<{scheme}://{host}{path}>") == f"<{scheme}://{host}>"


@given(RANDOM, st.sampled_from(("{}", "key {}", "-{}-", "a={},", "/x/{}/y", '"{}"')))
def test_a_long_random_key_is_withheld_whatever_its_service(key: str, around: str) -> None:
    """No list knows all shapes."""
    assert key not in withheld(around.format(key))
    assert holds_secret(around.format(key), {})


@given(st.text())
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


def test_the_callers_own_secrets_are_known_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they look like, as whole words only."""
    monkeypatch.setenv("HF_TOKEN", "sesame")
    monkeypatch.setenv("A_LIMIT_PASS", "100000")
    assert withheld("open sesame, sesames and 1000000") == f"open {WITHHELD}, sesames and 1000000"
    assert holds_secret("open sesame", os.environ)


def test_errors_events_and_rows_cannot_hold_a_secret() -> None:
    """Whoever words them."""
    text = "cannot reach https://me:pw@host.example/simple"
    said = "cannot reach https://host.example"
    assert str(LaunchError(text)) == said
    assert events.as_line(events.Note(text))["text"] == said
    engine = NoContainersError("no engine at tcp://me:pw@engine:2375", "start one")
    assert (engine.reason, str(engine)) == (
        "no engine at tcp://engine:2375",
        "no engine at tcp://engine:2375; start one",
    )
    failure = Failure(kind="RunnerError", message=text, stage="load", exit_code=5, log_tail=text)
    assert (failure.message, failure.log_tail) == (said, said)


@pytest.mark.parametrize(
    "part", ["a", "a-", "aB1", "://", "a:b@", "token ", "key=", "a://", "x/", "-----BEGIN PRIVATE KEY"]
)
def test_no_text_takes_long(part: str) -> None:
    """A stranger's result is looked through before it is bundled."""
    text = part * (500_000 // len(part))
    started_s = time.monotonic()
    withheld(text)
    assert holds_secret(text, {}) in (True, False)
    assert time.monotonic() - started_s < 60

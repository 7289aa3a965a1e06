"""The model of a server that runs already, and what is said where it cannot be asked."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from make import models as tiny
from make.openai_server import KEY, behaving, certificate
from refused import raises
from seams.inputs import ServedModel

from wattdock.config import load_study
from wattdock.errors import ConfigError, PreflightError
from wattdock.inputs import ServedModels, resolve_model

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.config import ExperimentConfig


def experiment(url: str | dict[str, str], **settings: Any) -> ExperimentConfig:
    return load_study({"url": url, **settings}, {}).experiments[0]


def asked(config: ExperimentConfig) -> ServedModel:
    return ServedModels.at(config.section.server_url).meant_by(config)


@pytest.mark.parametrize(
    ("behaviour", "variables", "settings", "kind", "words"),
    [
        ("", {}, {"model": "owner/other"}, ConfigError, "has stand-in, not owner/other"),
        ("", {}, {"url.model": "other"}, ConfigError, "has stand-in, not other"),
        ("two", {}, {}, ConfigError, "has stand-in, second; name one: url.model"),
        ("html", {}, {}, PreflightError, "answers /v1/models with no JSON"),
        ("other", {}, {}, PreflightError, "{'hello': 1}; it is no OpenAI-compatible server"),
        ("redirect", {}, {}, PreflightError, "answers /v1/models with 302"),
        ("key", {}, {}, PreflightError, "wants a key: put it into the environment variable WATTDOCK_API_KEY"),
        ("key", {"WATTDOCK_API_KEY": "no", "WATTDOCK_API_URL": "here"}, {}, PreflightError, "refuses the key in"),
        (
            "key",
            {"WATTDOCK_API_KEY": KEY},
            {},
            PreflightError,
            "only the address in --url gets the one in WATTDOCK_API_KEY; or export WATTDOCK_API_URL=http",
        ),
        ("key", {"WATTDOCK_API_KEY": "a\nb"}, {}, PreflightError, "WATTDOCK_API_KEY holds what no header can hold"),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line_with_what_to_do(
    behaviour: str,
    variables: dict[str, str],
    settings: dict[str, str],
    kind: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong model is the file's mistake, everything else the machine's."""
    with behaving(behaviour) as (url, _):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("here", url))
        config = load_study({"url": url}, settings).experiments[0]
        with raises(kind, words) as caught:
            asked(config)
    assert "\n" not in str(caught.value)


def test_nobody_there_and_the_other_protocol_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is closed or silent, TLS where there is none, none where it is, and an untrusted certificate."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with raises(PreflightError, "nobody answers (Connection refused); start the server"):
            asked(experiment(f"http://127.0.0.1:{unused.getsockname()[1]}"))
    with behaving("") as (url, _), raises(PreflightError, "write http:// for a server without"):
        asked(experiment(url.replace("http:", "https:")))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("http", "https"):
            with raises(PreflightError, "accepts the connection, and has not answered in 0.2 s"):
                ServedModels.at(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", wait_s=0.2)
    pem = certificate(tmp_path)
    with behaving("", env={**os.environ, "STAND_IN_PEM": str(pem)}) as (url, _):
        with raises(PreflightError, "write https:// for a server with TLS"):
            asked(experiment(url))
        secure = experiment(url.replace("http:", "https:"))
        with raises(PreflightError, "its certificate is not trusted", "SSL_CERT_FILE"):
            asked(secure)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert asked(secure).name == "stand-in"


def test_the_only_model_is_meant_and_of_several_the_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name there, by the last part of an id; nothing of it is known but its name, and a key is sent."""
    monkeypatch.setenv("WATTDOCK_API_KEY", KEY)
    with behaving("key") as (url, _):
        monkeypatch.setenv("WATTDOCK_API_URL", f"{url}/v1/")
        config = experiment(f"{url}/v1/")
        assert config.section.server_url == url
        folder = resolve_model(config.model, home=tmp_path, progress=print, config=config)
        assert (folder.kind, folder.name, folder.revision, folder.served_as) == ("served", "stand-in", None, "stand-in")
        assert asked(experiment(url, model="owner/stand-in")).name == "stand-in"
    with behaving("two") as (url, _):
        assert asked(load_study({"url": url}, {"url.model": "second"}).experiments[0]).name == "second"


@pytest.mark.parametrize(
    ("root", "model", "is_refused"),
    [
        ("owner/name-AWQ", "owner/name", True),
        ("other/name", "owner/name", True),
        ("Owner/Name", "owner/name", False),
        ("owner/name", "name", False),
        ("owner/name-AWQ", "served", False),
        ("/models/name-AWQ", "owner/name", False),
        ("./name-AWQ", "owner/name", False),
        ("", "owner/name", False),
    ],
)
@pytest.mark.parametrize("names_it_there", [False, True])
def test_a_server_that_tells_of_another_model_behind_the_name_is_refused(
    root: str, model: str, is_refused: bool, names_it_there: bool
) -> None:
    """A figure of four-bit weights would be published as one of the model's own, by its revision."""
    there = {"base_url": "http://127.0.0.1:8000"} | ({"model": "owner/name"} if names_it_there else {})
    config = experiment(there, model=model)
    models = ServedModels("http://127.0.0.1:8000", (ServedModel("owner/name", root=root),))
    if is_refused:
        with raises(ConfigError, f"serves {root} as owner/name, not {model}; give --model {root}"):
            models.meant_by(config)
    else:
        assert models.meant_by(config).root == root


@pytest.mark.parametrize(
    ("beside", "is_described"),
    [
        ({}, True),
        ({"model.safetensors": None}, False),
        ({"model.safetensors": None, "pytorch_model.bin": b"x"}, False),
        ({"model.safetensors": None, "model.gguf": b"GGUF"}, False),
        ({"adapter_config.json": b"{}"}, False),
        ({"config.json": b"{"}, False),
    ],
)
def test_a_server_is_measured_whatever_its_folder_holds(
    beside: dict[str, bytes | None], is_described: bool, tmp_path: Path
) -> None:
    """It has loaded its model already; a folder that is not whole is no more known than one elsewhere."""
    content = {name: data for name, data in (tiny.files() | beside).items() if data is not None}
    path = tiny.write(tmp_path / "model", content)
    assert ServedModel("name", root=str(path)).path("http://127.0.0.1:8000") == (path if is_described else None)
    assert ServedModel("name", root=str(path)).path("http://192.0.2.1:8000") is None


@pytest.mark.parametrize("declared", ["my laptop", "vllm/vllm-openai:latest", f"image@sha256:{'0' * 63}", ""])
def test_only_an_image_by_its_digest_declares_what_a_server_runs_in(declared: str) -> None:
    """Any words made a figure publishable, with a warning that they were not checked."""
    with raises(ConfigError, "url: environment: ", "write IMAGE@sha256:…"):
        experiment({"base_url": "http://127.0.0.1:8000", "environment": declared})
    whole = {"base_url": "http://127.0.0.1:8000", "environment": f"image@sha256:{'0' * 64}"}
    assert experiment(whole).section.model_dump()["environment"] == whole["environment"]

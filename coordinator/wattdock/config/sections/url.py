"""Settings of a server that runs already."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from wattdock.config.sections import BackendSection

if TYPE_CHECKING:
    from collections.abc import Mapping


class Section(BackendSection):
    """`url:` in an experiment, which a plain address stands for, too: a server that runs already, and stays.

    Attributes:
        dtype: The server's own.
        base_url: Scheme, host and port of an OpenAI-compatible server; a path `/v1` may follow.
        model: The model's name there, where it differs from `model`; needed where the server has several.
        environment: What the server runs in, as `IMAGE@sha256:…`; declared, not checked.
    """

    arrivals: ClassVar = ("batch", "closed", "open", "single")

    dtype: Literal["auto"] = "auto"
    base_url: str
    model: str | None = None
    environment: str | None = None

    @field_validator("base_url")
    @classmethod
    def _address(cls, text: str) -> str:
        parts = urlsplit(text)
        port = parts.port
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/") not in ("", "/v1"):
            like = f"{parts.scheme}://{parts.netloc}" if parts.hostname else "http://127.0.0.1:8000"
            raise ValueError(f"{text!r} is no server's address; write it as {like}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("give scheme, host and port only; a key belongs into the variable WATTDOCK_API_KEY")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}{f':{port}' if port else ''}"

    @model_validator(mode="after")
    def _nothing_else(self) -> Self:
        if self.passed_through:
            raise ValueError(f"{self.passed_through[0]} is the server's own setting, and it runs already; leave it out")
        if self.environment is not None and not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", self.environment):
            raise ValueError(f"environment: {self.environment} is nothing that others can get; write IMAGE@sha256:…")
        return self

    @property
    def server_url(self) -> str:
        """The address."""
        return self.base_url

    def context_tokens(self, model: Mapping[str, Any]) -> int | None:  # noqa: ARG002
        """Return None: only the server knows."""
        return None

    def engine_args(self) -> dict[str, Any]:
        """Return what the runner is given; it gets the name under which the server has the model besides."""
        return {"base_url": self.base_url}

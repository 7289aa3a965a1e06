"""A model's folder, a file in it, or a cache of models that this user may not read: one line before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from make import models as tiny

if TYPE_CHECKING:
    from command import Command

COMMIT = "1234567890abcdef1234567890abcdef12345678"
CACHED = f"models--a--b/snapshots/{COMMIT}"


@pytest.mark.parametrize(
    ("closed", "named", "line"),
    [
        ("m", "m", "cannot read {}/m: Permission denied; see that this user may read it"),
        ("m/config.json", "m", "no readable config.json in {}/m (Permission denied); "),
        ("m/model.safetensors", "m", "cannot read {}/m/model.safetensors: Permission denied; see that this user"),
        ("m/tokenizer.json", "m", "cannot read {}/m/tokenizer.json: Permission denied; see that this user"),
        ("m", "m/x.gguf", "cannot read {}/m/x.gguf: Permission denied; see that this user may read it"),
        ("models--a--b", CACHED, f"cannot read {{}}/{CACHED}: Permission denied; "),
        (CACHED, CACHED, f"cannot read {{}}/{CACHED}: Permission denied; "),
    ],
)
def test_what_this_user_may_not_read_of_a_model_is_named(wattdock: Command, closed: str, named: str, line: str) -> None:
    """A folder that is there is never said to be missing or empty."""
    for place in ("m", CACHED):
        tiny.write(wattdock.folder / place)
    tiny.gguf_file(wattdock.folder / "m/x.gguf")
    (wattdock.folder / closed).chmod(0)
    backend = "llamacpp" if named.endswith(".gguf") else "pytorch"
    done = wattdock("plan", "--backend", backend, "--prompts", "synthetic", "--model", f"./{named}")
    (wattdock.folder / closed).chmod(0o755)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert line.format(wattdock.folder) in done.stderr

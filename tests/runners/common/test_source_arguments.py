"""Engine arguments that an engine's source declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.arguments import Argument, json_ready, source_arguments

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
class Base(Strict):
    model_config = ConfigDict()
    model: Union[str, Path] = Field()
    max_batch_size: Optional[int] = Field(default=2048)

class TorchLlmArgs(Base):
    _private: int = 1
    load: Literal["a", "b"] = "a"
    max_batch_size: int = 1

    def method(self): ...
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of an engine's package that declares its arguments."""
    package = tmp_path / "some_engine"
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    return package / "arguments.py"


def declared(*classes: str, **changes: Any) -> dict[str, Argument]:
    options: dict[str, Any] = {"left_out": (), "refused": {}, **changes}
    return source_arguments("some_engine", "arg*.py", *classes, **options) or {}


def test_fields_are_those_of_the_class_and_its_bases(engine: Path) -> None:
    """Each once; some are left out, some refused, some added."""
    engine.write_text(SOURCE)
    fields = declared("TorchLlmArgs")
    assert fields.keys() == {"model", "max_batch_size", "load"} == declared().keys()
    assert declared("Removed") == {}
    fields = declared(left_out=("mo*",), refused={"load": "no"}, added={"serve": Argument((bool,))})
    assert fields.keys() == {"max_batch_size", "load", "serve"}
    assert fields["load"].refused == "no"
    assert source_arguments("no_engine", "arguments.py", left_out=(), refused={}) is None


def test_a_set_is_written_in_one_order_whatever_the_process() -> None:
    """Two runners with equal arguments would seem to differ."""
    assert json_ready({"bits": frozenset("zyxab"), "order": ("z", "a")}) == {
        "bits": ["a", "b", "x", "y", "z"],
        "order": ["z", "a"],
    }

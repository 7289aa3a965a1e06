"""What JSON may bring for an engine argument, by the annotation in the engine's source."""

from __future__ import annotations

import ast

import pytest

from wattdock_runner.arguments import ANY_JSON, argument_for, fields_in, json_ready

NONE = type(None)
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


def test_fields_are_those_of_the_class_and_its_bases() -> None:
    """The nearest declaration wins, as in Python."""
    fields = fields_in(SOURCE, "TorchLlmArgs")
    assert fields.keys() == {"model", "max_batch_size", "load"}
    assert fields["max_batch_size"].types == (int,)
    assert fields_in(SOURCE, "Removed") == {}
    assert fields_in(SOURCE).keys() == fields.keys()


@pytest.mark.parametrize(
    ("annotation", "types", "choices"),
    [
        ("Optional[int]", {int, NONE}, set()),
        ("PositiveInt", {int}, set()),
        ("Optional[List[int]]", {list, NONE}, set()),
        ("Optional[Dict[str, str]]", {dict, NONE}, set()),
        ("Optional[Literal['AUTO', 'NCCL']]", {str, NONE}, {"AUTO", "NCCL", None}),
        ("Union[str, SamplerType]", set(ANY_JSON), set()),
        ("bool | Literal['auto']", {bool, str}, set()),
        ("int | None", {int, NONE}, set()),
        ("A[Optional[int], Arg(help='of SGLang')]", {int, NONE}, set()),
        ("Annotated[bool, 'help']", {bool}, set()),
        ("list[str]", {list}, set()),
        ("dict[str, int] | None", {dict, NONE}, set()),
        ("'dict[str, int] | Other'", set(ANY_JSON), set()),
    ],
)
def test_types_are_what_json_may_bring(annotation: str, types: set[type], choices: set[object]) -> None:
    """A name that only the engine knows may stand for anything."""
    argument = argument_for(ast.parse(annotation, mode="eval").body)
    assert (set(argument.types), set(argument.choices)) == (types, choices)


def test_a_set_is_written_in_one_order_whatever_the_process() -> None:
    """Two runners with equal arguments would seem to differ."""
    assert json_ready({"bits": frozenset("zyxab"), "order": ("z", "a")}) == {
        "bits": ["a", "b", "x", "y", "z"],
        "order": ["z", "a"],
    }

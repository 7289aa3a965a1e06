"""Engine arguments are refused by name, never dropped."""

from __future__ import annotations

import pytest

from wattdock_runner.arguments import Argument, check_engine_args
from wattdock_runner.errors import InvalidRequest

ENGINE = "vllm 0.32.0"
DECLARED = {
    "device_map": Argument((str, type(None)), ("auto", None)),
    "threads": Argument((int,)),
    "share": Argument((float,)),
    "eager": Argument((bool,)),
    "overrides": Argument((dict,), refused="another model would run; write it into its folder"),
}


def test_valid_arguments_pass() -> None:
    """A whole number is a number, and null is a value where it is declared."""
    check_engine_args({"device_map": None, "threads": 2, "share": 1, "eager": False}, DECLARED, ENGINE)


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ({"device_mop": "auto"}, "vllm 0.32.0 has no argument 'device_mop'; nearest: 'device_map'"),
        ({"zzz": 1}, "vllm 0.32.0 has no argument 'zzz'; valid: device_map, eager, share, threads"),
        ({"threads": "2"}, "engine argument 'threads' must be a whole number, not text ('2')"),
        ({"threads": True}, "engine argument 'threads' must be a whole number, not true or false (True)"),
        ({"share": False}, "engine argument 'share' must be a number, not true or false (False)"),
        ({"eager": 1}, "engine argument 'eager' must be true or false, not a whole number (1)"),
        ({"device_map": "cpu"}, "engine argument 'device_map' must be one of \"auto\", null, not 'cpu'"),
        (
            {"overrides": {}},
            "engine argument 'overrides' is not taken: another model would run; write it into its folder",
        ),
        ({"device_map": 3}, "engine argument 'device_map' must be null or text, not a whole number (3)"),
    ],
)
def test_bad_argument_is_named_with_value_and_way_out(engine_args: dict[str, object], message: str) -> None:
    """The whole line is what a user reads."""
    with pytest.raises(InvalidRequest) as caught:
        check_engine_args(engine_args, DECLARED, ENGINE)
    assert str(caught.value) == message


def test_a_name_unlike_all_of_many_valid_names_does_not_list_all() -> None:
    """An engine has hundreds."""
    many = {f"option_{number}": Argument((int,)) for number in range(200)}
    with pytest.raises(InvalidRequest, match=r"'zzz'.* 200 ") as caught:
        check_engine_args({"zzz": 1}, many, ENGINE)
    assert "option_" not in str(caught.value)

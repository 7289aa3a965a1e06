"""Values that break what reads them: the largest, the deepest, what is no number, what no encoder writes."""

from __future__ import annotations

import struct

DEEP, LONG = 100_000, 4_000_000
# What no JSON encoder writes: the text in place of a string that holds the name.
RAW = {
    "\ue000 lists": "[" * DEEP + "]" * DEEP,
    "\ue000 objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "\ue000 open": "[" * DEEP,
    "\ue000 900": '{"a":[' * 450 + "]}" * 450,
    "\ue000 190": "[" * 190 + "]" * 190,
    "\ue000 digits": "9" * 5_000,
    "\ue000 overflow": "1e999",
    "\ue000 surrogate": '"\\ud800"',
    "\ue000 nothing": "",
}
LAUGHS = "[&a [x,x,x,x,x,x,x,x,x], " + ", ".join(
    f"&{name} [{','.join(['*' + before] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
RAW_YAML = {
    **RAW,
    "\ue000 laughs": LAUGHS + "]",
    "\ue000 self": "&self [*self]",
    "\ue000 tag": "!!python/object/apply:os.system [ls]",
    "\ue000 merge": "{<<: {a: 1}, ? [1, 2] : 3}",
    "\ue000 sexagesimal": "190:20:30",
    "\ue000 date": "2026-02-30",
    "\ue000 binary": "!!binary x",
}
INTEGERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    *("", " ", "x", "NaN", "Infinity", "-1", "1e999", "null", "\0", "\x1b]0;x\x07", "\ud800", "é" * 50, "🙂", "\u2028"),
    *("../../etc/passwd", "/dev/zero", "/", ".", "~", "a/b", "2026-02-30T25:61", "9999-12-31T23:59:59-23:59"),
    *("0001-01-01T00:00:00+23:59", "fake", "vllm", "shape:tiny-llama", "shape:llama-3.1-405b", "%s{}%n", "x" * LONG),
)
SCALARS = (None, True, False, *INTEGERS, *FLOATS, *TEXTS)
NAMES = (
    *(
        "",
        ".",
        "..",
        "/abs",
        "../up",
        "a/../../b",
        ".hidden",
        "x" * 300,
        "x\0y",
        "\udcff",
        "a\nb",
        "results/x/result.json",
    ),
)
# Of fixed width, little-endian, in binary headers.
WORDS = tuple(
    struct.pack(form, value)
    for form, values in {
        "<B": (0, 1, 127, 255),
        "<I": (0, 1, 2**16, 2**31, 2**32 - 1),
        "<Q": (0, 1, 2**20, 2**31, 2**40, 2**63, 2**64 - 1),
        "<d": (1e308, float("nan")),
    }.items()
    for value in values
)

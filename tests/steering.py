"""Text that would steer a terminal, and whether output holds any of it."""

from __future__ import annotations

# Sets the window's title; erases the screen, in two ways; rubs out; begins the line anew; turns the direction of
# writing; hides; forges a line.
CODES = ("\x1b]0;owned\x07", "\x1b[2J", "\x9b2J", "\x7f", "\b\b\b", "\r", "\u202e", "\u2066", "\u200b", "\u2028")
FORGED = "wattdock: forged"
HOSTILE = f"x{''.join(CODES)}\n{FORGED}"
# What stands in the codes and is a letter of its own.
ALLOWED = set("]0;owned[2J")


def steers(printed: str) -> list[str]:
    """Return what of the hostile text got through: codes, and forged lines."""
    codes = sorted({repr(letter) for code in CODES for letter in code if letter not in ALLOWED and letter in printed})
    return codes + [line for line in printed.splitlines() if line.startswith(FORGED)]

"""How many of something, as people say it. Pure."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return "1 pass", "2 passes", "no GPU", ….

    Args:
        many: The plural where it is not made with an s.
    """
    return f"{count or 'no'} {one}" if count < 2 else f"{count} {many or one + 's'}"

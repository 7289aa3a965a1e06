"""What tests reach behind the door of `quality`: a name that moves is changed here only."""

from wattdock.quality.bundled import questions

__all__ = ["questions"]

"""The version of wattdock: the only place that holds it."""

__version__ = "0.2.0.dev0"

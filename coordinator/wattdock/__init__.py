"""wattdock: what LLM inference costs in energy, measured well enough to publish."""

__version__ = "0.1.0"

"""How everything that is kept in a result.json behaves."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Stored(BaseModel):
    """A part of a result: never changed, without unknown keys; what files call `pass` may be given by its name here."""

    # Where anything may stand, infinity would become null.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, ser_json_inf_nan="strings")

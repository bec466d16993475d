"""The base class of templates."""

from nas.compat.rafiki.model import BaseModel, KnobConfig, Knobs, Params

__all__ = ["BaseModel", "KnobConfig", "Knobs", "Params"]

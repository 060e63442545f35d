"""Objects that are imported when they are used: a command starts without what it may not need."""

import importlib
from typing import Any


def imported(place: str) -> Any:
    """Return the object `module:name`. Places are constants in `tsd.cli`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)

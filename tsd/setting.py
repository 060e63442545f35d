"""How one setting is declared: a field of a settings class, with its key, unit, bounds and meaning."""

from dataclasses import field
from typing import Any, NamedTuple


class Key(NamedTuple):
    """How a field of Config is written in a file."""

    name: str
    doc: str
    unit: str = ""
    low: int | None = None
    high: int | None = None


def setting(name: str, default: Any, doc: str, unit: str = "", low: int | None = None, high: int | None = None) -> Any:
    return field(default=default, metadata={"key": Key(name, doc, unit, low, high)})

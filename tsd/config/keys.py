"""How a settings class declares its fields."""

from dataclasses import field
from typing import Any, NamedTuple


class Key(NamedTuple):
    """How a field of Config is written in a file."""

    name: str
    doc: str
    unit: str = ""
    low: int | None = None
    high: int | None = None
    example: str = ""  # value shown in conf/tsd.conf where the default depends on other settings


def setting(
    name: str,
    default: Any,
    doc: str,
    unit: str = "",
    low: int | None = None,
    high: int | None = None,
    example: str = "",
) -> Any:
    """Declare a field of a settings class. `doc` is its text in conf/tsd.conf."""
    return field(default=default, metadata={"key": Key(name, doc, unit, low, high, example)})

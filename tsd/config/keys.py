"""How a settings class declares its fields."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


class Key(NamedTuple):
    """How a field of Config is written in a file."""

    name: str
    doc: str
    unit: str = ""
    low: int | None = None
    high: int | None = None
    example: str = ""  # value shown in conf/tsd.conf where the default depends on other settings


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_section(made: type[T]) -> type[T]:
    """Make a dataclass of some fields of Config, which is never built alone. It gets no methods: to compile them for
    each section would take a hundredth of a start."""
    return dataclass(frozen=True, init=False, repr=False, eq=False)(made)


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

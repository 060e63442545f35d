"""Values in the JSON of KairosDB's queries, with the conversions that it allows."""

import math
from typing import Any

from tsd.codec.lenient_json import Lenient, Members
from tsd.query.kairosdb.model import UNITS_MS, BadRequest, Sampling

UNIT_NAMES = ",".join(UNITS_MS)


def sampling(value: Lenient, place: str, at: str = "") -> Sampling:
    """Return a length of time. `at` precedes the names of its members in messages. Raise BadRequest."""
    at = at or f"{place}.sampling."
    if not isinstance(value, Members):
        raise BadRequest(f"{at}value and unit are wanted, got {shown(value)}")
    number = integer(value["value"], f"{at}value") if "value" in value else 0
    if number < 0:
        raise BadRequest(f"{at}value must be greater than or equal to 0")
    unit = value.get("unit")
    if unit is None:
        raise BadRequest(f"{at}unit may not be null")
    if not isinstance(unit, str) or unit.upper() not in UNITS_MS:
        raise BadRequest(f"{place}.{shown(unit)} is not a valid time unit, must be one of {UNIT_NAMES}")
    return Sampling(number, unit.upper())


def items(value: Lenient, place: str) -> list[Any]:
    """Return an array. Raise BadRequest."""
    if not isinstance(value, list):
        raise BadRequest(f"{place} must be an array, got {shown(value)}")
    return value


def text(value: Lenient, place: str) -> str:
    """Return a text; numbers and booleans are taken as texts. Raise BadRequest."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise BadRequest(f"{place} must be a string, got {shown(value)}")
    return str(value)


def integer(value: Lenient, place: str) -> int:
    """Return a 64-bit integer; fractions are cut off. Raise BadRequest."""
    number = double(value, place)
    whole = str(value)
    exact = int(whole) if whole.removeprefix("-").isdecimal() else int(number)
    if not -(1 << 63) <= exact < 1 << 63:
        raise BadRequest(f"{place} {shown(value)} does not fit in 64 bits")
    return exact


def double(value: Lenient, place: str) -> float:
    """Return a finite number, or the text of one. Raise BadRequest."""
    try:
        if isinstance(value, bool) or not isinstance(value, str) or "_" in value:
            raise ValueError
        number = float(value)
    except ValueError as error:
        raise BadRequest(f'{place} For input string: "{shown(value)}"') from error
    if not math.isfinite(number):
        raise BadRequest(f"{place} must be finite, got {shown(value)}")
    return number


def flag(value: Lenient) -> bool:
    """Return a boolean; of texts and numbers only "true" is one."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def shown(value: Lenient) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return str(value)[:100]
    return str(value)[:100].lower() if isinstance(value, bool) else type(value).__name__

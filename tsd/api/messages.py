"""Requests → their parameters and JSON, answers → JSON, with OpenTSDB's words for what is missing or malformed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tsd.doors.exchange import Request, Response
from tsd.errors import Refused

LARGEST = 4 << 20  # bytes of JSON that are read at once: some 50 ms, in which nobody else is served
WARNINGS = "X-Tsd-Warnings"
LONGEST_WARNING = 500  # characters of it that a header tells
_UNTELLABLE = re.compile(r"[^ -~]")  # in a header
_OVERRIDES = ("GET", "POST", "PUT", "DELETE")
_TRUE = ("true", "1", "yes")

DONE = Response(204, b"", None)
UNCHANGED = Response(304, b"", None)


def answer(value: object, status: int = 200) -> Response:
    """A response of JSON."""
    return Response(status, msgspec.json.encode(value))


def warned(warnings: Sequence[str]) -> list[tuple[str, str]]:
    """The header that tells what an answer is without, and that clients pass over: how many warnings, and the first.

    >>> warned([]), warned(["row 00 cannot be read", "another"])
    ([], [('X-Tsd-Warnings', '2; row 00 cannot be read')])
    """
    if not warnings:
        return []
    return [(WARNINGS, f"{len(warnings)}; {_UNTELLABLE.sub('?', warnings[0][:LONGEST_WARNING])}")]


def required(request: Request, name: str) -> str:
    """A parameter that must be there, and not empty; raises Refused."""
    value = request.param(name)
    if not value:
        raise Refused(400, f"Missing parameter <code>{name}</code>")
    return value


def is_true(value: object) -> bool:
    """A flag in a parameter or in JSON, where OpenTSDB takes texts too.

    >>> is_true(True), is_true("Yes"), is_true("0"), is_true(None)
    (True, True, False, False)
    """
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)


def meant_method(request: Request) -> str:
    """The method a request stands for: a GET may say another with `method_override`. Raises Refused."""
    override = request.param("method_override")
    if request.method != "GET" or override is None:
        return request.method
    if not override:
        raise Refused(405, "Missing method override value")
    if override.upper() not in _OVERRIDES:
        raise Refused(405, "Unknown or unsupported method override value")
    return override.upper()


def not_allowed(method: str) -> Refused:
    """What answers a method that an endpoint does not have."""
    return Refused(405, "Method not allowed", f"The HTTP method [{method}] is not permitted for this endpoint")


def check_method(request: Request, *methods: str) -> str:
    """The method of a request, one of `methods`; raises Refused."""
    return _one_of(request.method, methods)


def check_meant_method(request: Request, *methods: str) -> str:
    """The method that a request stands for, one of `methods`: for endpoints that edit. Raises Refused."""
    return _one_of(meant_method(request), methods)


def _one_of(method: str, methods: Sequence[str]) -> str:
    if method not in methods:
        raise not_allowed(method)
    return method


def members_in_url(request: Request, names: Mapping[str, str]) -> dict[str, Any]:
    """Those of a request's parameters that `names` has, by what it calls them: members of a body that is not there."""
    return {name: request.param(parameter) for parameter, name in names.items() if request.has(parameter)}


def json_of(request: Request) -> Any:
    """The value in a request's body; raises Refused."""
    if not request.body:
        raise Refused(400, "Missing message content", "Supply valid JSON formatted data in the body of your request")
    if len(request.body) > LARGEST:
        raise Refused(413, "Request Entity Too Large", f"got {len(request.body)} bytes, wanted at most {LARGEST}")
    try:
        return msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise unparsable(str(exc)) from exc


def unparsable(why: str) -> Refused:
    """What answers JSON that is none, or not the one wanted."""
    return Refused(400, "Unable to parse the given JSON", why)


def object_of(request: Request) -> dict[str, Any]:
    """The object in a request's body; raises Refused."""
    return as_object(json_of(request))


def objects_of(request: Request) -> list[dict[str, Any]]:
    """The list of objects in a request's body; raises Refused."""
    found = json_of(request)
    if not isinstance(found, list):
        raise unparsable(f"got {type(found).__name__}, wanted an array")
    return [as_object(one) for one in found]


def as_object(value: Any) -> dict[str, Any]:
    """A JSON value that must be an object; raises Refused."""
    if not isinstance(value, dict):
        raise unparsable(f"got {type(value).__name__}, wanted an object")
    return value


def text_in(members: Mapping[str, Any], name: str) -> str:
    """A member that is a text, or a number taken by its digits; empty where it is absent or null. Raises Refused."""
    value = members.get(name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise unparsable(f"{name}: got {type(value).__name__}, wanted a text")
    return str(value)


def number_in(members: Mapping[str, Any], name: str, default: int = 0) -> int:
    """A member that is an integer of 64 bits, or the text of one; raises Refused."""
    value = members.get(name)
    if value is None or value == "":
        return default
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        number = int(value)
    except (ValueError, OverflowError) as exc:
        raise unparsable(f"{name}: got {value!r}, wanted an integer") from exc
    if not -(1 << 63) <= number < 1 << 63:
        raise unparsable(f"{name}: {number} has more than 64 bits")
    return number


def texts_in(members: Mapping[str, Any], name: str) -> list[str]:
    """A member that is a list of texts; empty where it is absent. Raises Refused."""
    value = members.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise unparsable(f"{name}: got {type(value).__name__}, wanted an array of texts")
    return list(value)


def words_of_all(values: Sequence[str]) -> list[str]:
    """The words between commas of repeatable parameters.

    >>> words_of_all(["a,b", "c", ""])
    ['a', 'b', 'c']
    """
    return [word.strip() for value in values for word in value.split(",") if word.strip()]

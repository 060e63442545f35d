"""Parameters and JSON of requests and responses, and OpenTSDB's errors for missing or malformed ones."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from tsd.errors import Refused
from tsd.query.parse.times import MOST_DIGITS
from tsd.server.http.bodies import parse_json
from tsd.server.http.messages import WARNINGS, Endpoint, Request, Response

MAX_WARNING = 500  # characters in a header
_NOT_PRINTABLE = re.compile(r"[^ -~]")
_NOT_FINITE = re.compile(rb"[-+]?Infinity|NaN")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_OVERRIDES = ("GET", "POST", "PUT", "DELETE")
_TRUE = ("true", "1", "yes")

DONE = Response(204, b"", None)
UNCHANGED = Response(304, b"", None)


def answer(value: object, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(status, msgspec.json.encode(value))


def warned(warnings: Sequence[str]) -> list[tuple[str, str]]:
    """Return the header with the number of warnings and the first one, which OpenTSDB's clients ignore.

    >>> warned([]), warned(["row 00 cannot be read", "another"])
    ([], [('X-Tsd-Warnings', '2; row 00 cannot be read')])
    """
    if not warnings:
        return []
    return [(WARNINGS, f"{len(warnings)}; {_NOT_PRINTABLE.sub('?', warnings[0][:MAX_WARNING])}")]


def required(request: Request, name: str) -> str:
    """Return a required parameter, not empty. Raise Refused."""
    value = request.param(name)
    if not value:
        raise Refused(400, f"Missing parameter <code>{name}</code>")
    return value


def is_true(value: object) -> bool:
    """Return a flag in a parameter or in JSON, where OpenTSDB accepts texts too.

    >>> is_true(True), is_true("Yes"), is_true("0"), is_true(None)
    (True, True, False, False)
    """
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)


def meant_method(request: Request) -> str:
    """Return the method of a request; a GET may override it with `method_override`. Raise Refused."""
    override = request.param("method_override")
    if request.method != "GET" or override is None:
        return request.method
    if not override:
        raise Refused(405, "Missing method override value")
    if override.upper() not in _OVERRIDES:
        raise Refused(405, "Unknown or unsupported method override value")
    return override.upper()


def not_allowed(method: str) -> Refused:
    """Return the error of a method that an endpoint does not support."""
    return Refused(405, "Method not allowed", f"The HTTP method [{method}] is not permitted for this endpoint")


def missing_part(part: str) -> Endpoint:
    """Return an endpoint for a feature that the table layout lacks."""

    async def refuse(_request: Request) -> Response:
        raise Refused(501, "Not implemented", f"The configured table layout has no {part}")

    return refuse


def check_method(request: Request, *methods: str) -> str:
    """Return the method of a request, one of `methods`. Raise Refused."""
    return _one_of(request.method, methods)


def check_meant_method(request: Request, *methods: str) -> str:
    """Return the method of a request or its override, one of `methods`. For endpoints that write. Raise Refused."""
    return _one_of(meant_method(request), methods)


def _one_of(method: str, methods: Sequence[str]) -> str:
    if method not in methods:
        raise not_allowed(method)
    return method


def parts_after(request: Request, word: str) -> list[str]:
    """Return the parts of a request's path after the first part `word`, as they were sent. Raise Refused if a slash
    before them is encoded."""
    assert request.split is not None
    parts = request.split.path.rstrip("/").split("/")
    at = next((at for at, part in enumerate(parts) if unquote(part).lower() == word), None)  # of many, few are decoded
    if at is None:
        raise Refused(404, "Endpoint not found", f"got {request.split.path}, wanted no encoded slash before the name")
    return parts[at + 1 :]


def members_in_url(request: Request, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a request without a body: its parameters in `names`, renamed."""
    return {name: request.param(parameter) for parameter, name in names.items() if request.has(parameter)}


def quote_not_finite(text: bytes) -> bytes:
    """Return a JSON text with its NaN and Infinity, which are no JSON, as strings.

    >>> print(quote_not_finite(rb'{"NaN": NaN, "\\"NaN": -Infinity}').decode())
    {"NaN": "NaN", "\\"NaN": "-Infinity"}
    """
    parts: list[bytes] = []
    at, in_string = 0, False
    for found in _NOT_FINITE.finditer(text):
        between = text[at : found.start()]
        in_string ^= _ESCAPED.sub(b"", between).count(b'"') % 2 == 1
        parts += (between, found[0] if in_string else b'"%b"' % found[0])
        at = found.end()
    return b"".join((*parts, text[at:]))


def json_of(request: Request) -> Any:
    """Return the value in a request's body. Raise Refused."""
    if not request.body:
        raise Refused(400, "Missing message content", "Supply valid JSON formatted data in the body of your request")
    try:
        return parse_json(request.body)
    except ValueError as exc:
        raise unparsable(str(exc)) from exc


def unparsable(why: str) -> Refused:
    """Return the error of JSON that is invalid or has wrong types."""
    return Refused(400, "Unable to parse the given JSON", why)


def object_of(request: Request) -> dict[str, Any]:
    """Return the object in a request's body. Raise Refused."""
    return as_object(json_of(request))


def objects_of(request: Request) -> list[dict[str, Any]]:
    """Return the list of objects in a request's body. Raise Refused."""
    found = json_of(request)
    if not isinstance(found, list):
        raise unparsable(f"got {type(found).__name__}, wanted an array")
    return [as_object(one) for one in found]


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON value as an object. Raise Refused."""
    if not isinstance(value, dict):
        raise unparsable(f"got {type(value).__name__}, wanted an object")
    return value


def text_in(members: Mapping[str, Any], name: str) -> str:
    """Return a member that is a string, a number or a boolean, as text; empty if absent or null. Raise Refused."""
    value = members.get(name)
    return "" if value is None else as_text(value, name)


def as_text(value: Any, name: str) -> str:
    """Return a string, a number or a boolean as text. Raise Refused, with the name of the member."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise unparsable(f"{name}: got {type(value).__name__}, wanted a string")
    return str(value)


def number_in(members: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a member that is a 64-bit integer, or the text of one. Raise Refused."""
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


def limit_in(text: str) -> int:
    """Return the number in a parameter `limit`. Raise Refused."""
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise Refused(400, "Unable to parse 'limit' to a whole number")
    return int(text)


def tsuids_in(members: Mapping[str, Any]) -> list[str]:
    """Return the member `tsuids`, a list of strings; empty if absent. Raise Refused."""
    value = members.get("tsuids")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise unparsable(f"tsuids: got {type(value).__name__}, wanted an array of strings")
    return list(value)


def words_of_all(values: Sequence[str]) -> list[str]:
    """Return the words of comma-separated, repeated parameters.

    >>> words_of_all(["a,b", "c", ""])
    ['a', 'b', 'c']
    """
    return [word.strip() for value in values for word in value.split(",") if word.strip()]

"""Messages of the control socket, in msgpack.

A request is `{"verb": …, arguments}`, its answer `{"result": …}` or `{"error": class name, "message": …}`,
that of a DamagedBlock with its `prefix`.
"""

from collections.abc import Mapping
from typing import Any

import msgpack

import tsd.errors
from tsd.errors import DamagedBlock, TsdError

MAX_MESSAGE = 256 << 20


def encode_request(verb: str, arguments: Mapping[str, object]) -> bytes:
    """Return the bytes of a request."""
    packed: bytes = msgpack.packb({"verb": verb, **arguments})
    return packed


def result_of(answer: Mapping[str, Any]) -> Any:
    """Return the result in an answer. Raise the error in it, a TsdError.

    >>> result_of({"result": 7})
    7
    >>> result_of({"error": "NoTable", "message": "no table tsdb"})
    Traceback (most recent call last):
    tsd.errors.NoTable: no table tsdb
    """
    if "error" not in answer:
        return answer["result"]
    kind = getattr(tsd.errors, answer["error"], TsdError)
    if kind is DamagedBlock:
        raise DamagedBlock(answer["message"], answer.get("prefix", b""))
    raise kind(answer["message"]) if issubclass(kind, TsdError) else TsdError(answer["message"])

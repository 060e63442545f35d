"""HTTP requests that take much work to parse, check or answer, for `bench.fairness`."""

import json
import socket
from collections.abc import Iterator

from bench.lines import START_S

VALUES = 2000  # values of the tag that patterns are tested on
SPAN = f"start={START_S}&end={START_S + 600}"


def pattern_lines() -> bytes:
    """Return put lines of a metric whose tag has long values."""
    values = ("a" * (64 if number % 2 else 200) + str(number) for number in range(VALUES))
    return "".join(f"put bench.pattern {START_S} 1 host={value}\n" for value in values).encode()


def _get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _post(path: str, value: object) -> bytes:
    body = json.dumps(value).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _pattern(regexp: str) -> bytes:
    found = {"type": "regexp", "tagk": "host", "filter": regexp, "groupBy": True}
    sub = {"aggregator": "sum", "metric": "bench.pattern", "filters": [found]}
    return _post("/api/query", {"start": START_S, "end": START_S + 600, "queries": [sub]})


def _requests() -> Iterator[tuple[str, bytes]]:
    yield "a GET with 1,000 filters", _get(f"/api/query?{SPAN}&m=sum:x{{{','.join(f'{n}=v' for n in range(1000))}}}")
    yield "a GET with 2,000 sub queries", _get(f"/q?{SPAN}" + "".join(f"&m=sum:m{n}" for n in range(2000)))
    yield "a pattern that backtracks", _pattern("(a+)(a+)(a+)!")
    yield "a pattern of words", _pattern(r"^(\w+)(\w+)(\w+)!")
    yield "a pattern with a reference", _pattern(r"(a+)\1b")
    bad = {"metric": "m", "timestamp": START_S, "value": "x", "tags": {"host": "a"}}
    yield "40,000 bad points", _post("/api/put?details", [bad] * 40_000)
    yield "a point with 60,000 tags", _post("/api/put?details", {**bad, "tags": {str(n): "v" for n in range(60_000)}})
    rule = {"treeId": 1, "level": 0, "type": "TAGK", "field": "host", "regex": "(a|b)*c.*d"}
    yield "1,000 tree rules", _post("/api/tree/rules", [{**rule, "order": n} for n in range(1000)])
    yield "340,000 empty sub queries", _post("/api/query", {"queries": [{}] * 340_000})


REQUESTS = dict(_requests())


def repeat(connection: socket.socket, name: str) -> None:
    """Send a request and read its answer, again and again, on connections of its own."""
    place = connection.getpeername()
    source = connection.getsockname()[0]
    connection.close()
    while True:
        with socket.create_connection(place, timeout=120, source_address=(source, 0)) as own:
            own.sendall(REQUESTS[name].replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n", 1))
            while own.recv(1 << 16):
                pass

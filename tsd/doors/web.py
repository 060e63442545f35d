"""HTTP on the telnet port. This version knows the protocol well enough to say that there is nothing behind it yet."""

import json
import re
from collections.abc import Awaitable, Callable

import h11
import trio

MAX_REQUEST = 64 << 10
BAD_REQUEST, NOT_IMPLEMENTED = 400, 501
_REQUEST_LINE = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.[01]\r?")


async def refuse_http(stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
    """Answer one request with 501 in OpenTSDB's error form, or with 400 where its headers are bad. Close without a
    byte on what is not HTTP, not whole or too long, as OpenTSDB does."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
    while b"\n" not in first and len(first) < MAX_REQUEST and (more := await receive()):
        first += more
    if _REQUEST_LINE.fullmatch(first.partition(b"\n")[0]) is None:
        return
    with_body = not first.startswith(b"HEAD ")
    try:
        connection.receive_data(first)
        while (event := connection.next_event()) is h11.NEED_DATA:
            if not (data := await receive()):
                return
            connection.receive_data(data)
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == BAD_REQUEST:
            await stream.send_all(_answer(connection, BAD_REQUEST, "Bad request", str(error), with_body))
        return
    if isinstance(event, h11.Request):
        details = "This version takes data points over telnet only: put <metric> <time> <value> <tagk=tagv>"
        await stream.send_all(_answer(connection, NOT_IMPLEMENTED, "Not implemented", details, with_body))


def _answer(connection: h11.Connection, code: int, message: str, details: str, with_body: bool) -> bytes:
    """A response in OpenTSDB's error form, after which the connection is closed."""
    body = json.dumps({"error": {"code": code, "message": message, "details": details}}).encode()
    headers = [("Content-Type", "application/json; charset=UTF-8"), ("Content-Length", str(len(body)))]
    head = connection.send(h11.Response(status_code=code, headers=[*headers, ("Connection", "close")])) or b""
    return head + body if with_body else head

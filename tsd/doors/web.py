"""HTTP on the telnet port. This version knows the protocol well enough to say that there is nothing behind it yet."""

import json
import re
from collections.abc import Awaitable, Callable

import h11
import trio

MAX_REQUEST = 64 << 10
_REQUEST_LINE = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.[01]\r?")


async def refuse_http(stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
    """Answer one request with 501 in OpenTSDB's error form; close without a byte on what is not HTTP, as it does."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
    while b"\n" not in first and len(first) < MAX_REQUEST and (more := await receive()):
        first += more
    if _REQUEST_LINE.fullmatch(first.partition(b"\n")[0]) is None:
        return
    try:
        connection.receive_data(first)
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await receive())
    except h11.RemoteProtocolError:
        return
    if not isinstance(event, h11.Request):
        return
    details = "This version takes data points over telnet only: put <metric> <time> <value> <tagk=tagv>"
    body = json.dumps({"error": {"code": 501, "message": "Not implemented", "details": details}}).encode()
    headers = [("Content-Type", "application/json; charset=UTF-8"), ("Content-Length", str(len(body)))]
    parts = (
        h11.Response(status_code=501, headers=[*headers, ("Connection", "close")]),
        h11.Data(data=b"" if event.method == b"HEAD" else body),
        h11.EndOfMessage(),
    )
    if event.method == b"HEAD":
        await stream.send_all(connection.send(parts[0]) or b"")
        return
    await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))

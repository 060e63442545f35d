"""Clients that query over HTTP during other load: normal, slow and disconnecting ones."""

import json
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from tests.faults.load import HOST
from tests.running import Client
from tests.unit.server.web_parts import get, read_response

OK = 200
BYTES = 500  # that a slow reader reads one by one
SIP = 2000  # bytes per read afterwards
GZIP = 16 + zlib.MAX_WBITS


class Question(NamedTuple):
    """A query with its expected answer."""

    path: str
    answer: object  # None: any answer with status 200


async def http_request(port: int, path: str, *, method: str = "GET") -> tuple[int, Any]:
    """Send a request. Return status and JSON."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        client = Client(stream)
        await client.send(get(path, method=method))
        response = await read_response(client)
        return response.status, json.loads(response.body) if response.body else None


def check(question: Question, status: int, body: bytes) -> None:
    """Assert that the answer is the expected one."""
    assert status == OK, (question.path, status, body[:500])
    found = json.loads(body)
    assert question.answer is None or found == question.answer, question.path


async def patient(port: int, questions: list[Question], *, packed: bool) -> None:
    """Send all queries over one connection."""
    headers = ["Accept-Encoding: gzip"] if packed else []
    async with await trio.open_tcp_stream(HOST, port) as stream:
        client = Client(stream)
        for question in questions:
            await client.send(get(question.path, *headers))
            response = await read_response(client)
            coded = "content-encoding" in response.headers
            check(question, response.status, zlib.decompress(response.body, GZIP) if coded else response.body)


class SlowReader:
    """A stream that reads single bytes first and small blocks later."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._taken = 0

    async def receive_some(self) -> bytes:
        """Return the next bytes."""
        data = bytes(await self._stream.receive_some(1 if self._taken < BYTES else SIP))
        self._taken += len(data)
        return data


async def slow(port: int, question: Question) -> None:
    """Query and read the answer slowly."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(get(question.path))
        response = await read_response(Client(SlowReader(stream)))  # type: ignore[arg-type]
        check(question, response.status, response.body)


async def disconnecting(port: int, question: Question, taken: int) -> None:
    """Query, read `taken` bytes of the answer, and reset the connection."""
    stream = await trio.open_tcp_stream(HOST, port)
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with stream:
        await stream.send_all(get(question.path))
        with suppress(trio.BrokenResourceError):
            while taken > 0 and (data := await stream.receive_some(taken)):
                taken -= len(data)


def running(answer: Mapping[str, Any]) -> list[int]:
    """The ids of running queries in an answer of /api/stats/query."""
    return [int(one["id"]) for one in answer["running"]]

"""Clients that ask queries over HTTP beside others: patient ones, slow ones, and some that go away."""

import json
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from tests.faults.load import HOST
from tests.running import Client
from tests.unit.doors.web_parts import get, hear

OK = 200
BYTES = 500  # that a slow reader takes one by one
SIP = 2000  # and then so many at a time
GZIP = 16 + zlib.MAX_WBITS


class Question(NamedTuple):
    """A query that has one right answer."""

    path: str
    answer: object  # None: any with status 200 will do


async def asked(port: int, path: str, *, method: str = "GET") -> tuple[int, Any]:
    """The status and the JSON that one request is answered with."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        client = Client(stream)
        await client.send(get(path, method=method))
        heard = await hear(client)
        return heard.status, json.loads(heard.body) if heard.body else None


def check(question: Question, status: int, body: bytes) -> None:
    """The answer is the right one."""
    assert status == OK, (question.path, status, body[:500])
    found = json.loads(body)
    assert question.answer is None or found == question.answer, question.path


async def patient(port: int, questions: list[Question], *, packed: bool) -> None:
    """Asks all over one connection."""
    headers = ["Accept-Encoding: gzip"] if packed else []
    async with await trio.open_tcp_stream(HOST, port) as stream:
        client = Client(stream)
        for question in questions:
            await client.send(get(question.path, *headers))
            heard = await hear(client)
            coded = "content-encoding" in heard.headers
            check(question, heard.status, zlib.decompress(heard.body, GZIP) if coded else heard.body)


class Sipper:
    """A stream for a client that takes little at a time: a byte, and later some more."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._taken = 0

    async def receive_some(self) -> bytes:
        """What comes next."""
        data = bytes(await self._stream.receive_some(1 if self._taken < BYTES else SIP))
        self._taken += len(data)
        return data


async def slow(port: int, question: Question) -> None:
    """Takes its answer byte by byte, and later in sips."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(get(question.path))
        heard = await hear(Client(Sipper(stream)))  # type: ignore[arg-type]
        check(question, heard.status, heard.body)


async def fleeting(port: int, question: Question, taken: int) -> None:
    """Hangs up, as a process that is killed, when it has got so many bytes of its answer: none, or its beginning."""
    stream = await trio.open_tcp_stream(HOST, port)
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with stream:
        await stream.send_all(get(question.path))
        with suppress(trio.BrokenResourceError):
            while taken > 0 and (data := await stream.receive_some(taken)):
                taken -= len(data)


def running(told: Mapping[str, Any]) -> list[int]:
    """The ids of the queries that /api/stats/query says are running."""
    return [int(one["id"]) for one in told["running"]]

"""Random connections below the protocols: random first bytes, malformed HTTP, malformed TLS."""

import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress

import trio

from tests.fuzz.lines import Lines

HOST = "tsd.test"
GOOD = (
    b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /api/aggregators?jsonp=f HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD /version HTTP/1.0\r\n\r\n",
    b"OPTIONS /api/put HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n\r\n",
    b"GET /api/suggest?type=metrics&q=m HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70\r\n\r\n"
    b'{"metric":"m","timestamp":1356998400,"value":1,"tags":{"host":"other"}}'[:70],
    b"POST /api/put?details HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n[null\r\n1\r\n]\r\n0\r\n\r\n",
    b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
)
PIECES = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b"\r\n ", b":", b": ", b"\x80", b"\xff", b"HTTP/1.1",
    b"HTTP/9.9", b"HTTP/2.0", b"Content-Length: 3\r\n", b"Content-Length: 3, 3\r\n", b"Content-Length: +3\r\n",
    b"Content-Length: \r\n", b"Content-Length: 18446744073709551616\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"transfer-encoding:\tchunked\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n", b"Host: b\r\n", b"Host:\r\n", b"Expect: 100-continue\r\n",
    b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"-1\r\n", b"0x5\r\n", b"5;a=\"b\r\n", b"A" * 9000, b"X: y\r\n" * 300,
    b"%00", b"../", b"http://tsd/", b"*", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\xef\xbb\xbf", b"Trailer: X\r\n", b"Range: bytes=0-\r\n", b"Authorization: Basic ====\r\n",
    b"Authorization: Bearer \xff\r\n",
)  # fmt: skip
PATIENCE_S = 60  # for a daemon that neither answers nor disconnects

Draw = Callable[[], bytes]


class Bad(AssertionError):
    """The daemon misbehaved."""


class FuzzedConnections:
    """Generates and runs connections."""

    def __init__(self, port: int, rng: random.Random, requests: Draw, client: ssl.SSLContext) -> None:
        self._port = port
        self._rng = rng
        self._requests = requests  # complete ones
        self._client = client
        self._lines = Lines(rng)
        self.sent = 0  # requests, or their equivalent
        self.answered = 0  # connections with any answer

    async def connect(self) -> None:
        """Run one connection. Raise Bad."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        shape = self._shape()
        encrypted = self._rng.random() < 0.2
        try:
            with trio.fail_after(PATIENCE_S):
                if encrypted:
                    await self._encrypted(stream, shape())
                else:
                    await self._plain(stream, shape())
        except trio.TooSlowError:
            raise Bad(
                f"neither an answer nor an end in {PATIENCE_S} s: {shape.__name__}, encrypted: {encrypted}"
            ) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def _shape(self) -> Draw:
        return self._rng.choice(
            (self._first_byte, self._http, self._http, self._http, self._drawn, self._telnet, self._telnet)
        )

    async def _plain(self, stream: trio.SocketStream, text: bytes) -> None:
        for piece in self._cut(text):
            await stream.send_all(piece)
        await self._end(stream)

    def _cut(self, text: bytes) -> Iterator[bytes]:
        """Split a text into one or a few pieces."""
        at = 0
        for _ in range(self._rng.choice((0, 0, 0, 1, 3))):
            to = self._rng.randint(at, len(text))
            yield text[at:to]
            at = to
        yield text[at:]

    async def _end(self, stream: trio.SocketStream) -> None:
        kind = self._rng.random()
        if kind < 0.1:
            return  # disconnect
        if kind < 0.15:
            with trio.move_on_after(0.05):  # possibly no answer is due
                self.answered += bool(await stream.receive_some())
            return
        await stream.send_eof()
        answered = False
        while await stream.receive_some():
            answered = True
        self.answered += answered

    def _first_byte(self) -> bytes:
        """Return any first byte with some data."""
        self.sent += 1
        rng = self._rng
        tail = rng.choice((b"", b"\n", b"\r\n", rng.randbytes(rng.randint(1, 300)), rng.choice(GOOD)))
        return bytes([rng.randrange(256)]) + tail

    def _http(self) -> bytes:
        """Return consecutive requests with changed bytes."""
        rng = self._rng
        text = b""
        for _ in range(rng.choice((1, 1, 2, 5))):
            self.sent += 1
            request = rng.choice(GOOD)
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                request = self._changed(request)
            text += request
        return text

    def _changed(self, text: bytes) -> bytes:
        rng = self._rng
        at = rng.randint(0, len(text))
        kind = rng.random()
        if kind < 0.5:
            return text[:at] + rng.choice(PIECES) + text[at:]
        if kind < 0.7:
            return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        if kind < 0.85:
            return text[:at] + text[at + rng.randint(1, 20) :]
        return text[:at]

    def _drawn(self) -> bytes:
        """Return a valid request."""
        self.sent += 1
        return self._requests()

    def _telnet(self) -> bytes:
        self.sent += 1
        return self._lines.block(self._rng.choice((1, 3, 30))) + self._rng.choice((b"", b"stats\n", b"put m 1"))

    async def _encrypted(self, stream: trio.SocketStream, text: bytes) -> None:
        """Use TLS from the first record, with records cut, changed and duplicated. Inside is any other shape."""
        rng = self._rng
        tampers = rng.choice((0.0, 0.0, 0.3, 1.0))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        talk = self._client.wrap_bio(incoming, outgoing, server_hostname=HOST)

        async def flush() -> None:
            data = outgoing.read()
            if data and rng.random() < tampers:
                data = self._spoiled(data)
            for piece in self._cut(data):
                if piece:
                    await stream.send_all(piece)

        async def do(step: Callable[[], object]) -> bool:
            """Do a step of TLS. Return False if the daemon or TLS has closed the connection."""
            while True:
                try:
                    step()
                except ssl.SSLWantReadError:
                    await flush()
                    if rng.random() < tampers / 4:
                        return False
                    data = await stream.receive_some()
                    if not data:
                        return False
                    incoming.write(data)
                except ssl.SSLError:
                    return False
                else:
                    await flush()
                    return True

        if tampers == 1.0 and rng.random() < 0.3:  # half a ClientHello, and no more
            with suppress(ssl.SSLWantReadError):
                talk.do_handshake()
            hello = outgoing.read()
            await self._plain(stream, self._spoiled(hello[: rng.randint(1, len(hello))]))
            return
        if not await do(talk.do_handshake):
            return
        if not text or not await do(lambda: talk.write(text)):
            return
        if rng.random() < 0.3:
            return
        await stream.send_eof()  # without closing TLS, as many clients do
        while await stream.receive_some():
            pass
        self.answered += 1

    def _spoiled(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:  # not empty: a client that has sent nothing may wait without limit
                return data[: at + 1]
            case 1:
                return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else b""
            case 2:
                return data[:5] + rng.randbytes(rng.randint(0, 60)) + data[5:]
            case 3:
                return data + data
            case 4:  # a record with a wrong length or type
                return data[:3] + rng.randbytes(2) + data[5:]
            case _:
                return bytes([rng.choice((20, 21, 22, 23, 24, 0x80))]) + data[1:]

"""Clients that nobody wants: they never read, send a byte now and then, hang up in mid-line, or send no line at all."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from tsd.torture.senders import AGAIN_S, HOST, Cutter, reset

PAUSES_S = (0.01, 0.1, 1.0, 4.0)  # of one that sends a byte at a time
JUNK_BYTES = 5000
DEAF_LINES = 200
WORDS = (b"put\n", b"put  \n", b"\0\0\0\n", b"stats\n" * 20, b"version\nhelp\n", b"GET / HTTP/1.1\r\n\r\n",
         b"POST /api/put HTTP/1.1\r\nContent-Length: 99999\r\n\r\n[{", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
         b"\x16\x03\x01\x02\x00\x01\x00", b"\xff\xfb\x1f\xff\xfa", b"sync\n" * 50, b"x" * 40_000)  # fmt: skip

Bad = Callable[[trio.SocketStream, random.Random], Awaitable[None]]


async def deaf(stream: trio.SocketStream, chance: random.Random) -> None:
    """Asks and errs without end, and never reads a word."""
    while True:
        await stream.send_all(chance.choice([b"put x\n", b"put y 1 1 a\n", b"stats\n", b"sync\n"]) * DEAF_LINES)


async def slow(stream: trio.SocketStream, chance: random.Random) -> None:
    """Sends a byte now and then, of a line or a request that never ends."""
    text = chance.choice(
        [b"put slow.client 1500000000 1 host=a", b"POST /api/put HTTP/1.1\r\nContent-Length: 9\r\n\r\n["]
    )
    for at in range(len(text)):
        await stream.send_all(text[at : at + 1])
        await trio.sleep(chance.choice(PAUSES_S))
    await trio.sleep_forever()


async def babbling(stream: trio.SocketStream, chance: random.Random) -> None:
    """Sends what is no line, or no request, of random bytes and of words that others know, and hangs up."""
    for _ in range(chance.randint(1, 20)):
        junk = chance.randbytes(chance.randint(1, JUNK_BYTES)).replace(b"put", b"pat")
        await stream.send_all(chance.choice([junk, *WORDS]))
    if chance.random() < 0.5:
        reset(stream)


BAD: tuple[Bad, ...] = (deaf, slow, babbling)


async def misbehave(bad: Bad, port: int, chance: random.Random) -> None:
    """One such client after the other, for ever."""
    while True:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await bad(stream, chance)
        await trio.sleep(chance.uniform(0, 2 * AGAIN_S))


async def cut_lines(cutter: Cutter, port: int) -> None:
    """The same with one that cuts its lines."""
    while True:
        cutter.begin()
        await cutter.run(port)
        await trio.sleep(AGAIN_S)

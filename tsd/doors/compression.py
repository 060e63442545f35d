"""Bodies of responses, compressed where a client takes it."""

import zlib
from collections.abc import AsyncGenerator, AsyncIterator

import trio

from tsd.doors.parts import MadeOf

LEAST_BYTES = 256  # smaller ones gain nothing
IN_THREAD_BYTES = 32 << 10
# Answers are numbers in JSON: level 1 leaves a quarter of them at a fifth of what level 6 costs, which leaves a sixth.
LEVEL = 1
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def chosen(accept: str | None) -> str | None:
    """The coding that suits an `Accept-Encoding`: gzip before deflate; None for neither.

    >>> chosen("deflate;q=0.5, gzip;q=0"), chosen("br, *"), chosen("identity"), chosen(None)
    ('deflate', 'gzip', None, None)
    """
    if not accept:
        return None
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, rest = part.partition(";")
        weights[name.strip()] = _weight(rest)
    others = weights.get("*", 0.0)
    gzip = weights.get("gzip", weights.get("x-gzip", others))
    deflate = weights.get("deflate", others)
    if gzip > 0 and gzip >= deflate:
        return "gzip"
    return "deflate" if deflate > 0 else None


def _weight(text: str) -> float:
    name, _, value = text.partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 1.0


async def compressed(body: bytes, coding: str) -> bytes:
    """A whole body; a large one in a thread."""
    if len(body) < IN_THREAD_BYTES:
        return _compress(body, coding)
    return await trio.to_thread.run_sync(_compress, body, coding)


def _compress(body: bytes, coding: str) -> bytes:
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, _WINDOWS[coding])
    return stream.compress(body) + stream.flush()


def compressed_parts(parts: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """A body that comes in parts, each of which is sent as far as it has been compressed."""
    return MadeOf(_compressed_parts(parts, coding), parts)


async def _compressed_parts(parts: AsyncIterator[bytes], coding: str) -> AsyncGenerator[bytes, None]:
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, _WINDOWS[coding])
    async for part in parts:
        if len(part) < IN_THREAD_BYTES:
            done = stream.compress(part)
        else:
            done = await trio.to_thread.run_sync(stream.compress, part)
        if done:
            yield done
    yield stream.flush()

"""Bodies of HTTP requests and responses.

Request bodies are decompressed within a limit and converted to UTF-8. `MemoryBudget` bounds the memory of all request
bodies together. Response bodies are compressed if the client accepts it.
"""

import codecs
import math
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import trio

from tsd.errors import Refused, json_mistake

CLIENT_SHARES = 4  # one client may reserve this fraction of the budget
MIN_BYTES_PER_S = 64 << 10  # expected of a client while others wait
START_GRACE_S, MAX_DURATION_S = 5, 20  # while others wait: until the first byte, and for a whole body
DECOMPRESS_IN_THREAD_BYTES = 64 << 10  # compressed size from which decompression would block the event loop
STEP_BYTES = 1 << 20  # decompressed at once
MAX_GZIP_MEMBERS = 16  # of one body: each member copies the rest of the input
# Of a JSON body that is parsed in the event loop. An object or array takes up to 0.4 us with its release, a member up
# to 0.3 us: below 10 ms for a body, during which no other request is served.
MAX_JSON_BYTES, MAX_JSON_OBJECTS, MAX_JSON_VALUES = 1 << 20, 10_000, 40_000
# Charsets in addition to UTF-8. Python's others are refused: some take more than linear time (punycode), and
# Python caches every name that is looked up.
CHARSETS = frozenset(
    f"""latin1 latin-1 ascii utf-16 utf-16le utf-16be utf-32 utf-32le utf-32be koi8-r koi8-u gbk gb2312 gb18030 big5
    shift_jis euc-jp euc-kr {" ".join(f"iso-8859-{part} windows-{1249 + part}" for part in range(1, 10))}
    iso-8859-10 iso-8859-11 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16""".split()
)
# Content codings by their names, and what some clients send in their place for a plain body.
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "x-deflate": "deflate"}
_NO_CODINGS = ("", "identity", "utf-8", "utf8")
GZIP_TYPE = "application/gzip"  # a content type that stands for a coding
MAX_CODINGS = 3  # of one body: each takes as long as the body is large
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
TOO_LARGE, UNSUPPORTED, OVERLOADED = 413, 415, 503


class Reservation:
    """The memory that one request has reserved. It has a deadline while other requests wait for memory."""

    def __init__(self, budget: "MemoryBudget", client: str) -> None:
        self._budget = budget
        self.client = client
        self.size = 0  # bytes
        self._scope: trio.CancelScope | None = None  # while a body is received
        self._due = math.inf  # the deadline, if others wait

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *error: object) -> None:
        if self.size:
            self._budget.release(self.client, self.size)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Receive the body in this block. Raise TooSlowError if it is late while others wait for memory."""
        self._begun = trio.current_time()
        self._scope = scope = trio.CancelScope()
        self.received(0)
        try:
            with self._budget.receiving(self), scope:
                yield
        finally:
            self._due = math.inf
            self._scope = None
        if scope.cancelled_caught:
            raise trio.TooSlowError

    def received(self, size: int) -> None:
        """Extend the deadline: `size` bytes of the body were received so far."""
        earned_s = min(size / MIN_BYTES_PER_S, MAX_DURATION_S * size / max(1, self.size))
        self._due = self._begun + START_GRACE_S + earned_s
        if self._scope is not None and self._scope.deadline != math.inf:
            self.set_deadline()

    def set_deadline(self) -> None:
        """Apply the deadline: other requests wait."""
        if self._scope is not None:
            self._scope.deadline = self._due

    def clear_deadline(self) -> None:
        """Lift the deadline: no request waits."""
        if self._scope is not None:
            self._scope.deadline = math.inf

    @property
    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self._due <= trio.current_time()

    def take_nowait(self, amount: int) -> bool:
        """Reserve `amount` bytes if they are free. For a request that has reserved nothing yet."""
        assert not self.size
        if not self._budget.is_free(self.client, amount):
            return False
        self._budget.add(self.client, amount)
        self.size = amount
        return True

    async def take(self, amount: int) -> None:
        """Wait for `amount` bytes. For a request that has reserved nothing yet: two requests that hold memory
        and wait for more would deadlock. Raise Refused if there is never as much."""
        assert not self.size
        await self._budget.wait(self.client, amount)
        self.size = amount

    def grow(self, amount: int) -> None:
        """Reserve `amount` bytes in total. Raise Refused if they are not free."""
        more = amount - self.size
        if more > 0:
            self._budget.check(amount)
            if not self._budget.is_free(self.client, more, held=self.size):
                self._budget.reprioritize_late(self.client, more)
                raise Refused(OVERLOADED, "Too many requests", "The memory for request bodies is in use; send again")
            self._budget.add(self.client, more)
            self.size = amount

    def shrink(self, amount: int) -> None:
        """Keep `amount` bytes, and give the others back."""
        if self.size > amount:
            self._budget.release(self.client, self.size - amount)
            self.size = amount


class _Waiter(NamedTuple):
    """A request that waits for memory."""

    client: str
    amount: int
    granted: trio.Event


class MemoryBudget:
    """Memory for the bodies of all requests that are received or processed, in bytes.

    Requests are served in order. One client may reserve a share of the budget; its only request may exceed the share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._share = limit // CLIENT_SHARES
        self.used = 0
        self._clients: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()
        self._receiving: set[Reservation] = set()

    def reserve(self, client: str) -> Reservation:
        """Return an empty reservation that is released at the end of its `with` block."""
        return Reservation(self, client)

    @contextmanager
    def receiving(self, reservation: Reservation) -> Iterator[None]:
        """Mark a reservation as receiving its body: it may get a deadline."""
        self._receiving.add(reservation)
        self._reprioritize()
        try:
            yield
        finally:
            self._receiving.remove(reservation)

    def is_free(self, client: str, amount: int, *, held: int = 0) -> bool:
        """Return whether a client's request that has `held` bytes may reserve `amount` more. If it is the client's only
        one, it may exceed the share."""
        is_only = self._clients[client] == held
        return self.used + amount <= self._limit and (is_only or not self._exceeds_share(client, amount))

    def _exceeds_share(self, client: str, amount: int) -> bool:
        """Return whether only the client's own reservations prevent `amount` more."""
        own = self._clients[client]
        return own != 0 and own + amount > self._share

    def add(self, client: str, amount: int) -> None:
        """Count reserved bytes."""
        self.used += amount
        self._clients[client] += amount

    def check(self, amount: int) -> None:
        """Raise Refused if a body that takes `amount` can never be received."""
        if amount > self._limit:
            details = f"The body takes more memory than {self._limit} bytes (tsd.http.request.memory)"
            raise Refused(TOO_LARGE, "Request Entity Too Large", details)

    async def wait(self, client: str, amount: int) -> None:
        """Reserve `amount` as soon as it is free. Raise Refused if it is more than there is."""
        self.check(amount)
        if self.is_free(client, amount):
            self.add(client, amount)
            return
        waiter = _Waiter(client, amount, trio.Event())
        self._waiting.append(waiter)
        self._reprioritize()
        try:
            await waiter.granted.wait()
        except trio.Cancelled:
            if waiter.granted.is_set():  # granted and cancelled in the same pass of the event loop
                self.release(client, amount)
            else:
                self._remove(waiter)
            raise

    def _remove(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._reprioritize()

    def release(self, client: str, amount: int) -> None:
        """Give reserved bytes back, to requests that wait for them."""
        self.used -= amount
        self._clients[client] -= amount
        if not self._clients[client]:
            del self._clients[client]
        for waiter in list(self._waiting):
            if self.is_free(waiter.client, waiter.amount):
                self._remove(waiter)
                self.add(waiter.client, waiter.amount)
                waiter.granted.set()
        if self._waiting:
            self._reprioritize()

    def _reprioritize(self) -> None:
        """Set deadlines on the reservations whose memory a waiter needs, and lift those of the others."""
        over_share = {one.client for one in self._waiting if self._exceeds_share(one.client, one.amount)}
        any_release_helps = any(not self._exceeds_share(one.client, one.amount) for one in self._waiting)
        for reservation in self._receiving:
            if any_release_helps or reservation.client in over_share:
                reservation.set_deadline()
            else:
                reservation.clear_deadline()

    def reprioritize_late(self, client: str, amount: int) -> None:
        """Set deadlines on late reservations whose memory `client` could use, for a request that cannot wait."""
        for reservation in self._receiving:
            if reservation.is_late and (reservation.client == client or not self._exceeds_share(client, amount)):
                reservation.set_deadline()


def content_codings(value: str) -> list[str]:
    """Return the codings of a `Content-Encoding` in the order in which they are undone. Raise Refused (415).

    >>> content_codings("deflate, X-GZIP"), content_codings("identity")
    (['gzip', 'deflate'], [])
    """
    names = [name for part in value.split(",") if (name := part.strip().lower()) not in _NO_CODINGS]
    if len(names) > MAX_CODINGS or not all(name in _CODINGS for name in names):
        details = f"got Content-Encoding: {value[:100]}, wanted gzip, deflate, up to {MAX_CODINGS} of them, or none"
        raise Refused(UNSUPPORTED, "Unsupported Media Type", details, (("Accept-Encoding", "gzip, deflate"),))
    return [_CODINGS[name] for name in reversed(names)]


async def decoded(body: bytes, headers: Mapping[str, str], limit: int, reservation: Reservation) -> bytes:
    """Return a body decompressed and in UTF-8. Raise Refused."""
    if not body:
        return b""
    content_type = headers.get("content-type", "")
    codings = content_codings(headers.get("content-encoding", ""))
    if not codings and content_type.partition(";")[0].strip().lower() == GZIP_TYPE:
        codings = ["gzip"]  # how KairosDB's clients send it
    for coding in codings:
        body = await decompressed(body, coding, limit, reservation)
    return await as_utf8(body, content_type, limit)


async def decompressed(body: bytes, coding: str, limit: int, reservation: Reservation) -> bytes:
    """Return a body without a coding: gzip or deflate.

    Raise Refused: 400 for damaged data, 413 past `limit` bytes or all memory of the budget, 503 if it is exhausted.
    """
    inflater = _Inflater(body, coding)
    parts: list[bytes] = []
    size = 0
    while not inflater.done:  # a few bytes can expand to any number: memory is reserved step by step
        reservation.grow(len(body) + min(size + STEP_BYTES, limit))
        if len(body) < DECOMPRESS_IN_THREAD_BYTES:
            parts.append(inflater.step())
            if not inflater.done:
                await trio.lowlevel.checkpoint()
        else:
            parts.append(await trio.to_thread.run_sync(inflater.step))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
    reservation.shrink(len(body) + size)  # many small requests may wait for a disk
    return b"".join(parts) if size <= STEP_BYTES else await trio.to_thread.run_sync(b"".join, parts)


class _Inflater:
    """Decompresses a body, at most `STEP_BYTES` of output at a time."""

    def __init__(self, body: bytes, coding: str) -> None:
        self._coding = coding
        self._window_bits = _GZIP
        if coding == "deflate":  # with the zlib header of the standard, or raw as some clients send it
            head = int.from_bytes(body[:2], "big")
            self._window_bits = _ZLIB if head >> 8 & 0x0F == 8 and head % 31 == 0 else _RAW
        self._stream = zlib.decompressobj(self._window_bits)
        self._input = body
        self._members = 1
        self.done = False

    def step(self) -> bytes:
        """Return the next bytes. Raise Refused for damaged or truncated data."""
        try:
            data = self._stream.decompress(self._input, STEP_BYTES)
        except zlib.error as exc:
            details = f"The body does not match its Content-Encoding ({self._coding}): {exc}"
            raise Refused(400, "Bad request", details) from exc
        self._input = self._stream.unconsumed_tail
        if self._stream.eof:
            self._next_member()
        elif len(data) < STEP_BYTES and not self._input:
            raise Refused(400, "Bad request", f"The body is truncated: its Content-Encoding is {self._coding}")
        return data

    def _next_member(self) -> None:
        rest = self._stream.unused_data.lstrip(b"\0") if self._window_bits == _GZIP else b""
        self.done = not rest
        if rest:
            self._members += 1
            if self._members > MAX_GZIP_MEMBERS:
                raise Refused(400, "Bad request", f"The body has more than {MAX_GZIP_MEMBERS} gzip members")
            self._stream, self._input = zlib.decompressobj(self._window_bits), rest


def too_large(limit: int) -> Refused:
    """Return the error for a body that exceeds its limit."""
    details = f"The body is larger than {limit} bytes (tsd.http.request.max_chunk)"
    return Refused(TOO_LARGE, "Request Entity Too Large", details)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body. Raise Refused (413) if parsing would take long, and ValueError if it is not
    JSON.

    Brackets and commas in texts count too: texts of a usual request have few.

    >>> parse_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    for got, limit, what in (
        (len(body), MAX_JSON_BYTES, "bytes"),
        (body.count(b"{") + body.count(b"["), MAX_JSON_OBJECTS, "objects and arrays"),
        (body.count(b",") + body.count(b":"), MAX_JSON_VALUES, "commas and colons"),
    ):
        if got > limit:
            raise Refused(TOO_LARGE, "Request Entity Too Large", f"got {got} {what}, wanted at most {limit}")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(json_mistake(exc)) from exc


async def as_utf8(body: bytes, content_type: str, limit: int) -> bytes:
    """Return a body in UTF-8, converted from the charset of its content type.

    Raise Refused: 400 for an unknown charset or invalid text, 413 past `limit` bytes.
    """
    _, found, rest = content_type.lower().partition("charset=")
    charset = rest.partition(";")[0].strip(" \"'")
    if not found or charset in ("utf-8", "utf8", "us-ascii", ""):
        return body
    wrong = Refused(400, "Bad request", f"The charset {charset} is unknown, or the body is not valid in it")
    if charset not in CHARSETS:
        raise wrong
    decoder = codecs.getincrementaldecoder(charset)()
    text = bytearray()
    for at in range(0, len(body), STEP_BYTES):
        try:
            text += decoder.decode(body[at : at + STEP_BYTES], at + STEP_BYTES >= len(body)).encode()
        except UnicodeError as exc:
            raise wrong from exc
        if len(text) > limit:
            raise too_large(limit)
        await trio.lowlevel.checkpoint()
    return bytes(text)


KEPT_CODINGS = 100  # for values of `Accept-Encoding`: clients repeat theirs
MIN_COMPRESSED_BYTES = 256  # compression does not pay for smaller bodies
COMPRESS_IN_THREAD_BYTES = 32 << 10
# Level 1 compresses typical responses to 25 % of their size, level 6 to 17 % at five times the cost.
LEVEL = 1
_WINDOW_BITS = {"gzip": _GZIP, "deflate": _ZLIB}


@lru_cache(KEPT_CODINGS)
def negotiated_coding(accept: str | None) -> str | None:
    """Return the coding for an `Accept-Encoding`: gzip is preferred to deflate; None for neither.

    >>> [negotiated_coding(value) for value in ("deflate;q=0.5, gzip;q=0", "br, *", "identity", None)]
    ['deflate', 'gzip', None, None]
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


class Compressor:
    """Compresses one response body. Large parts are compressed in a thread."""

    def __init__(self, coding: str) -> None:
        self._stream = zlib.compressobj(LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])

    async def compress(self, data: bytes) -> bytes:
        """Return the output so far; it may be empty."""
        if len(data) < COMPRESS_IN_THREAD_BYTES:
            return self._stream.compress(data)
        return await trio.to_thread.run_sync(self._stream.compress, data)

    def flush(self) -> bytes:
        """Return the rest of the output."""
        return self._stream.flush()

    async def compress_all(self, body: bytes) -> bytes:
        """Return a whole body, compressed."""
        return await self.compress(body) + self.flush()

"""Bodies of requests: uncompressed within a limit, and as UTF-8. And the room that all of them have together."""

import codecs
import math
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from tsd.errors import Refused

SHARES = 4  # one client may take so many parts of it at most
LEAST_RATE = 64 << 10  # bytes a second
GRACE_S, WHOLE_S = 5, 20  # while others wait: that a body may begin to come in, and then come whole in
IN_THREAD_BYTES = 64 << 10  # compressed: from here on it would hold up the others
STEP_BYTES = 1 << 20  # uncompressed at once
MEMBERS = 16  # of one gzip body: each costs a copy of what follows
# What a body may be in beside UTF-8. Python knows more: some take time beyond all bounds (punycode), and every name
# that it was ever asked for stays in memory.
CHARSETS = frozenset(
    f"""latin1 latin-1 ascii utf-16 utf-16le utf-16be utf-32 utf-32le utf-32be koi8-r koi8-u gbk gb2312 gb18030 big5
    shift_jis euc-jp euc-kr {" ".join(f"iso-8859-{part} windows-{1249 + part}" for part in range(1, 10))}
    iso-8859-10 iso-8859-11 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16""".split()
)
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
TOO_LARGE, OVERLOADED = 413, 503


class Claim:
    """What one request has of the room."""

    def __init__(self, room: "Room", client: str) -> None:
        self._room = room
        self.client = client
        self.taken = 0
        self._scope = trio.CancelScope()
        self._due = math.inf

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While the body comes. Raises TooSlowError where others wait for room, and it comes so slowly that it would
        keep them from it for long."""
        self._begun = trio.current_time()
        self.got(0)
        try:
            with self._room.held_by(self), self._scope:
                yield
        finally:
            self._due = math.inf
        if self._scope.cancelled_caught:
            raise trio.TooSlowError

    def got(self, size: int) -> None:
        """So much of the body has come."""
        worth_s = min(size / LEAST_RATE, WHOLE_S * size / max(1, self.taken))
        self._due = self._begun + GRACE_S + worth_s
        if self._scope.deadline != math.inf:
            self.hurry()

    def hurry(self) -> None:
        """Others wait: come as fast as is due, or give it up."""
        self._scope.deadline = self._due

    @property
    def is_late(self) -> bool:
        """Whether less has come than is due."""
        return self._due <= trio.current_time()

    def relax(self) -> None:
        """Nobody waits."""
        self._scope.deadline = math.inf

    def take_now(self, amount: int) -> bool:
        """Take so many bytes, for a request that holds none yet, if they are there."""
        assert not self.taken
        if not self._room.has(self.client, amount):
            return False
        self._room.add(self.client, amount)
        self.taken = amount
        return True

    async def take(self, amount: int) -> None:
        """Wait for so many bytes at once: for a request that holds none yet, as two that wait for each other's would
        wait for ever."""
        assert not self.taken
        await self._room.wait(self.client, amount)
        self.taken = amount

    def grow(self, amount: int) -> None:
        """Have `amount` bytes in all; raises Refused where that is more than there are."""
        more = amount - self.taken
        if more > 0:
            if not self._room.has(self.client, more):
                self._room.hurry_late(self.client, more)
                raise Refused(OVERLOADED, "Too many requests", "The memory for bodies of requests is taken; send again")
            self._room.add(self.client, more)
            self.taken = amount


class Room:
    """Memory for the bodies of all requests that are being received or worked on, in bytes. First come, first served;
    one client has no more than a share of it, so that others find room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._share = limit // SHARES
        self.used = 0
        self._clients: Counter[str] = Counter()
        self._waiting: deque[tuple[str, int, trio.Event]] = deque()
        self._receiving: set[Claim] = set()

    @contextmanager
    def held_by(self, claim: Claim) -> Iterator[None]:
        """While a body comes."""
        self._receiving.add(claim)
        self._press()
        try:
            yield
        finally:
            self._receiving.remove(claim)

    def hurry_late(self, client: str, amount: int) -> None:
        """Have those give up their room who are behind what is due, for one who cannot wait."""
        for claim in self._receiving:
            if claim.is_late and (claim.client == client or not self._has_its_share(client, amount)):
                claim.hurry()

    def _has_its_share(self, client: str, amount: int) -> bool:
        """Whether so much more is kept from a client by what it has itself: nobody else's room is of use to it."""
        own = self._clients[client]
        return own != 0 and own + amount > self._share

    def _press(self) -> None:
        """Have those hurry whose room somebody waits for, and the others take their time."""
        bound = {client for client, amount, _ in self._waiting if self._has_its_share(client, amount)}
        all_of_them = any(not self._has_its_share(client, amount) for client, amount, _ in self._waiting)
        for claim in self._receiving:
            if all_of_them or claim.client in bound:
                claim.hurry()
            else:
                claim.relax()

    @asynccontextmanager
    async def claim(self, client: str) -> AsyncIterator[Claim]:
        """A claim that ends with the block."""
        claim = Claim(self, client)
        try:
            yield claim
        finally:
            if claim.taken:
                self._give_back(client, claim.taken)

    def has(self, client: str, amount: int) -> bool:
        """Whether a client may take so much now. Whoever has nothing may take more than a share, if it is there."""
        own = self._clients[client]
        return self.used + amount <= self._limit and (own == 0 or own + amount <= self._share)

    async def wait(self, client: str, amount: int) -> None:
        """Take `amount`, as soon as it is there."""
        if self.has(client, amount):
            self.add(client, amount)
            return
        place = (client, amount, trio.Event())
        self._waiting.append(place)
        self._press()
        try:
            await place[2].wait()
        except trio.Cancelled:
            if place[2].is_set():  # given in the same moment
                self._give_back(client, amount)
            else:
                self._leave(place)
            raise

    def _leave(self, place: tuple[str, int, trio.Event]) -> None:
        self._waiting.remove(place)
        self._press()

    def add(self, client: str, amount: int) -> None:
        """Note what was taken."""
        self.used += amount
        self._clients[client] += amount

    def _give_back(self, client: str, amount: int) -> None:
        self.used -= amount
        self._clients[client] -= amount
        if not self._clients[client]:
            del self._clients[client]
        for place in list(self._waiting):
            if self.has(place[0], place[1]):
                self._leave(place)
                self.add(place[0], place[1])
                place[2].set()
        if self._waiting:
            self._press()


async def unpacked(body: bytes, coding: str, limit: int, claim: Claim) -> bytes:
    """A body without its `Content-Encoding`; an unknown coding changes nothing, as in OpenTSDB.

    Raises Refused: 400 where it is not what it says, 413 past `limit` bytes, 503 where there is no room.
    """
    coding = coding.strip().lower()
    if coding not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    inflater = _Inflater(body, coding)
    found = bytearray()
    while not inflater.done:  # a few bytes can promise any number: room is found step by step
        claim.grow(len(body) + min(len(found) + STEP_BYTES, limit))
        if len(body) < IN_THREAD_BYTES:
            found += inflater.step()
            await trio.lowlevel.checkpoint()
        else:
            found += await trio.to_thread.run_sync(inflater.step)
        if len(found) > limit:
            raise too_large(limit)
    return bytes(found)


class _Inflater:
    """A compressed body that gives out at most `STEP_BYTES` at once."""

    def __init__(self, body: bytes, coding: str) -> None:
        self._coding = coding
        self._windows = _GZIP
        if coding == "deflate":  # with a head as the standard says, or without as some send it
            with_head = body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
            self._windows = _ZLIB if with_head else _RAW
        self._stream = zlib.decompressobj(self._windows)
        self._left = body
        self._members = 1
        self.done = False

    def step(self) -> bytes:
        """The next bytes; raises Refused where they are damaged or cut."""
        try:
            data = self._stream.decompress(self._left, STEP_BYTES)
        except zlib.error as exc:
            told = f"The body is not what its Content-Encoding says ({self._coding}): {exc}"
            raise Refused(400, "Bad request", told) from exc
        self._left = self._stream.unconsumed_tail
        if self._stream.eof:
            self._next_member()
        elif len(data) < STEP_BYTES and not self._left:
            raise Refused(400, "Bad request", f"The body is not whole: its Content-Encoding is {self._coding}")
        return data

    def _next_member(self) -> None:
        rest = self._stream.unused_data.lstrip(b"\0") if self._windows == _GZIP else b""
        self.done = not rest
        if rest:
            self._members += 1
            if self._members > MEMBERS:
                raise Refused(400, "Bad request", f"The body has more than {MEMBERS} gzip members")
            self._stream, self._left = zlib.decompressobj(self._windows), rest


def too_large(limit: int) -> Refused:
    """What is answered to a body past its limit."""
    details = f"The body is larger than {limit} bytes (tsd.http.request.max_chunk)"
    return Refused(TOO_LARGE, "Request Entity Too Large", details)


async def as_utf8(body: bytes, content_type: str, limit: int) -> bytes:
    """A body in UTF-8, of whatever charset its type names. Raises Refused: 400 for an unknown one, or text that is not
    in it, 413 where it grows past `limit` bytes."""
    _, found, rest = content_type.lower().partition("charset=")
    charset = rest.partition(";")[0].strip(" \"'")
    if not found or charset in ("utf-8", "utf8", "us-ascii", ""):
        return body
    wrong = Refused(400, "Bad request", f"The body's charset {charset} is unknown, or not its own")
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

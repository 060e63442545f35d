"""What small senders have sent → one block of put lines, and whose they are: what is done for each of their packets."""

import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import trio

from tsd.doors.visitor import Visitor

READ_BYTES = 8 << 10  # of one packet: who sends more at once is no small sender
FEW_BYTES = 4 << 10  # of one read: some 60 put lines

try:
    from tsd.doors import _gather
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two


class Member(Protocol):
    """A connection that stands in the crowd."""

    visitor: Visitor
    accepted: int  # data points
    position: int  # of its last line in the journal
    longest: int  # bytes of a line, without its LF

    @property
    def at_ease(self) -> bool:
        """Whether it may be read from, as long as the gate is open and its client has no bounds, until it has taken a
        packet by itself."""

    @property
    def may_be_read(self) -> bool:
        """Whether it may be read from now without any wait."""

    def take(self, data: bytes) -> bytes:
        """Take in what came; what is left of it for the connection's own task, nothing where it stays in the crowd."""


class Place:
    """Where a connection stands."""

    __slots__ = ("client", "easy", "longest", "member", "task", "visitor")

    def __init__(self, member: Member, task: trio.lowlevel.Task) -> None:
        """Of a connection that is between two lines."""
        self.member = member
        self.task = task
        self.visitor = member.visitor
        self.client = member.visitor.client  # who is connected is not forgotten
        self.longest = member.longest
        self.easy = member.at_ease


class Share(NamedTuple):
    """A part of a block."""

    fd: int
    place: Place
    size: int  # bytes
    lines: int


class Gathered(NamedTuple):
    """What came from some of those who had something."""

    block: bytes  # put lines, as far as can be told at a glance
    shares: list[Share]  # whose they are, in their order
    others: list[tuple[int, bytes]]  # packets by descriptor that are no such lines; empty at the end of a connection
    failed: list[tuple[int, int]]  # descriptors that could not be read from, and errno
    uneasy: list[int]  # those that want a closer look before they are read from


def may_share(data: bytes, longest: int) -> bool:
    """Whether what came is whole lines and few, none longer than that, the first of which is a put line.

    >>> may_share(b"put m 17 1 a=b\\n", 14), may_share(b"put m 17 1 a=b\\n", 13), may_share(b"put m 17", 14)
    (True, False, False)
    """
    if len(data) >= FEW_BYTES or not data.startswith(b"put ") or not data.endswith(b"\n") or b"\r" in data:
        return False
    return len(data) <= longest + 1 or max(map(len, data.split(b"\n"))) <= longest


def room_for(packets: int) -> int:
    """Bytes that hold what so many share, and one packet more."""
    return packets * FEW_BYTES + READ_BYTES


def plain_gather(ready: Sequence[tuple[int, int]], places: Mapping[int, Place], _room: bytearray) -> Gathered:
    """Read once from each of those that have something. The compiled loop has them in a room of `room_for` them."""
    found = Gathered(b"", [], [], [], [])
    parts: list[bytes] = []
    for fd, _ in ready:
        place = places[fd]
        if not place.easy or place.client.is_bounded:
            found.uneasy.append(fd)
            continue
        try:
            data = os.read(fd, READ_BYTES)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # else the kernel has thrown away what came: it was damaged on its way
                found.failed.append((fd, error.errno or 0))
            continue
        if may_share(data, place.longest):
            parts.append(data)
            found.shares.append(Share(fd, place, len(data), data.count(b"\n")))
        else:
            found.others.append((fd, data))
    return found._replace(block=b"".join(parts))


def plain_credit(shares: Sequence[Share], position: int, now_s: float, now_ms: int) -> int:
    """Give each what is due for its lines, which were all taken in: how many they are."""
    total = 0
    for _, place, size, lines in shares:
        client, member = place.client, place.member
        client.bytes += size
        client.accepted += lines
        client.last_ms = now_ms
        if client.is_bounded:
            client.sent(lines)
        else:
            client.lines += lines
        member.accepted += lines
        member.position = position
        place.visitor.silent_since = now_s
        total += lines
    return total


gather = _gather.gather if HAS_LOOP else plain_gather
credit = _gather.credit if HAS_LOOP else plain_credit

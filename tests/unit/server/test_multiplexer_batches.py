"""What small senders have sent, read by the plain loop and by the compiled one, and by what the lines' buffer says."""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.peers.needs import need_compiled_loops
from tsd.doors.clients import Client
from tsd.doors.gather import (
    FEW_BYTES,
    HAS_LOOP,
    READ_BYTES,
    Gathered,
    Place,
    Share,
    may_share,
    plain_credit,
    plain_gather,
    room_for,
)
from tsd.doors.quotas import Quotas
from tsd.doors.visitor import Visitor
from tsd.ingest.lines import LineBuffer

if HAS_LOOP:
    from tsd.doors._gather import credit, gather

    LOOPS = [(plain_gather, plain_credit), (gather, credit)]
else:
    LOOPS = [(plain_gather, plain_credit)]

LONGEST = 40
LINE = b"put m 1700000000 1 a=b\n"
both = pytest.mark.parametrize(("read", "pay"), LOOPS, ids=["plain", "compiled"][: len(LOOPS)])


class Standing:
    """Who stands in the crowd."""

    def __init__(self, quotas: Quotas | None = None, *, at_ease: bool = True) -> None:
        client = Client("10.0.0.1", quotas) if quotas is not None else Client("10.0.0.1")
        self.visitor = Visitor("10.0.0.1", 1, client)
        self.accepted = self.position = 0
        self.longest = LONGEST
        self.at_ease = at_ease
        self.may_be_read = True

    def take(self, data: bytes) -> bytes:
        return data


@contextmanager
def connected(members: Sequence[Standing]) -> Iterator[tuple[dict[int, Place], list[socket.socket]]]:
    """Places by descriptor, and the other ends."""
    with ExitStack() as stack:
        places, ends = {}, []
        for member in members:
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            ours.setblocking(False)
            places[ours.fileno()] = Place(member, None)  # type: ignore[arg-type] # nobody is called here
            ends.append(theirs)
        yield places, ends


def gathered(
    read: Callable[..., Any], packets: Sequence[bytes | None], members: Sequence[Standing]
) -> tuple[Gathered, list[int]]:
    """What is read where each sends its packet: None, nothing."""
    with connected(members) as (places, ends):
        for end, packet in zip(ends, packets, strict=True):
            if packet == b"":
                end.shutdown(socket.SHUT_WR)
            elif packet is not None:
                end.sendall(packet)
        fds = list(places)
        found = Gathered(*read([(fd, 1) for fd in fds], places, bytearray(room_for(len(fds)))))
    return found, fds


PACKETS = st.lists(
    st.one_of(
        st.none(),
        st.lists(st.sampled_from([LINE, LINE, b"put ", b"\n", b"\r\n", b"version\n", b"x" * 30]), max_size=9)
        .map(b"".join),
        st.integers(FEW_BYTES - 40, FEW_BYTES + 40).map(lambda size: (LINE * 400)[:size]),
        st.binary(max_size=60),
    ),
    max_size=6,
)  # fmt: skip


@given(PACKETS)
def test_each_packet_is_shared_or_its_own(packets: list[bytes | None]) -> None:
    for read, _ in LOOPS:
        found, fds = gathered(read, packets, [Standing() for _ in packets])
        sent = dict(zip(fds, packets, strict=True))
        shared = [data for data in packets if data and may_share(data, LONGEST)]
        assert found.block == b"".join(shared)
        assert [sent[share[0]] for share in found.shares] == shared
        assert [(size, lines) for _, _, size, lines in found.shares] == [(len(d), d.count(b"\n")) for d in shared]
        others = [(fd, data) for fd, data in sent.items() if data is not None and not may_share(data, LONGEST)]
        assert found.others == others
        assert (found.failed, found.uneasy) == ([], [])


@given(st.lists(st.sampled_from([LINE, b"put m", b"\n", b"\r", b"x" * 38, b"put " + b"y" * 36])).map(b"".join))
def test_what_is_shared_is_what_the_lines_buffer_takes_for_whole(data: bytes) -> None:
    whole = len(data) < FEW_BYTES and data.startswith(b"put ") and LineBuffer(LONGEST).is_whole(data)
    assert may_share(data, LONGEST) == whole


@both
def test_no_more_is_read_at_once_than_there_is_room_for(read: Callable[..., Any], pay: object) -> None:
    large = LINE * 2000
    found, fds = gathered(read, [large, LINE], [Standing(), Standing()])
    assert found.others == [(fds[0], large[:READ_BYTES])]
    assert found.block == LINE


@both
def test_who_cannot_be_read_from_is_told_why(read: Callable[..., Any], pay: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, _ = server.accept()
        with ours:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            fd = ours.fileno()
            found = Gathered(*read([(fd, 1)], {fd: Place(Standing(), None)}, bytearray(room_for(1))))  # type: ignore[arg-type]
    assert found == Gathered(b"", [], [], [(fd, errno.ECONNRESET)], [])


@both
def test_who_wants_a_closer_look_is_not_read_from(read: Callable[..., Any], pay: object) -> None:
    """One who has shown who it is, and one with a quota."""

    async def run() -> None:
        members = [Standing(at_ease=False), Standing(Quotas(lines_per_s=5)), Standing()]
        with connected(members) as (places, ends):
            for end in ends:
                end.sendall(LINE)
            fds = list(places)
            found = Gathered(*read([(fd, 1) for fd in fds], places, bytearray(room_for(3))))
            assert (found.uneasy, found.block) == (fds[:2], LINE)
            assert [os.read(fd, 100) for fd in fds[:2]] == [LINE, LINE]

    trio.run(run)


@both
def test_what_each_is_due(read: object, pay: Callable[..., int]) -> None:
    async def run() -> None:
        members = [Standing(), Standing(Quotas(lines_per_s=5))]
        shares = [Share(at, Place(one, None), 100 * at + 50, at + 2) for at, one in enumerate(members)]  # type: ignore[arg-type]
        for _ in range(30):
            assert pay(shares, 77, 5.5, 1_700_000_000_000) == 5
        for at, member in enumerate(members):
            client = member.visitor.client
            lines = (at + 2) * 30
            assert (client.lines, client.accepted, client.bytes) == (lines, lines, (100 * at + 50) * 30)
            assert (client.last_ms, member.visitor.silent_since) == (1_700_000_000_000, 5.5)
            assert (member.accepted, member.position) == (lines, 77)
        assert members[0].visitor.client.debt_s == 0
        assert members[1].visitor.client.debt_s > 0  # 90 lines, of 50 that may come at once

    trio.run(run)


def test_both_loops_were_looked_at() -> None:
    need_compiled_loops()
    assert len(LOOPS) == 2

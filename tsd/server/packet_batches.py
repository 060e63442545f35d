"""Ingest packets of several connections as one batch.

To ingest a block costs as much CPU time as a hundred of its lines. So packets of valid put lines that were read
together are ingested as one block. A packet that needs the slow path goes to its connection, and the batch goes on with
the next one.
"""

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol

import trio

from tsd.lazy import LazyLogger
from tsd.server.peer import Peer

try:
    from tsd.server import _multiplexer
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # for comparisons

log = LazyLogger(__name__)


class BatchedConnection(Protocol):
    """A connection whose packets are ingested with those of others."""

    peer: Peer
    accepted: int  # data points
    position: int  # of its last line in the journal
    max_line: int  # bytes of a line, without LF


class BatchedSlot:
    """A connection that is read with others; `task` is its own task, which waits meanwhile."""

    __slots__ = ("bytes", "client", "connection", "max_line", "peer", "task")

    def __init__(self, connection: BatchedConnection, task: trio.lowlevel.Task) -> None:
        self.connection = connection
        self.task = task
        self.peer = connection.peer
        self.client = connection.peer.client  # a connected client is not evicted
        self.max_line = connection.max_line
        self.bytes = 0  # read here and ingested


class Packet(NamedTuple):
    """One connection's part of a batch."""

    fd: int
    slot: BatchedSlot
    size: int  # bytes
    lines: int


PACKET_SIZE = itemgetter(2)


def is_batchable(data: bytes, max_line: int, most_bytes: int) -> bool:
    """Return whether a packet has less than `most_bytes`, consists of whole lines within `max_line`, and begins with a
    put line.

    >>> is_batchable(b"put m 17 1 a=b\\n", 14, 99), is_batchable(b"put m 17 1 a=b\\n", 13, 99)
    (True, False)
    >>> is_batchable(b"put m 17 1 a=b\\n", 14, 15), is_batchable(b"put m 17", 14, 99)
    (False, False)
    """
    if len(data) >= most_bytes or not data.startswith(b"put ") or not data.endswith(b"\n") or b"\r" in data:
        return False
    return len(data) <= max_line + 1 or max(map(len, data.split(b"\n"))) <= max_line


def credit_batch_python(packets: Sequence[Packet], position: int, now_s: float, now_ms: int) -> int:
    """Count an accepted batch with each connection and its client. Return the number of lines."""
    total = 0
    for _, slot, size, lines in packets:
        client, connection = slot.client, slot.connection
        slot.bytes += size
        client.bytes += size
        client.accepted += lines
        client.last_ms = now_ms
        if client.is_limited:
            client.count_received(lines)
        else:
            client.lines += lines
        connection.accepted += lines
        connection.position = position
        slot.peer.idle_since = now_s
        total += lines
    return total


credit_batch = _multiplexer.credit_batch if HAS_LOOP else credit_batch_python


class PacketBatches:
    """Ingests batches of packets."""

    def __init__(
        self,
        take_packets: Callable[[bytes, Sequence[int], int], tuple[int, int]],
        now_ms: Callable[[], int],
        on_accepted: Callable[[int], None],
        *,
        is_plain: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`take_packets` ingests put lines of several connections, see `Intake.take_packets`. `on_accepted` receives
        the number of ingested lines. `is_plain`: connections take other packets themselves, and translate them."""
        self._take_packets = take_packets
        self._now_ms = now_ms
        self._on_accepted = on_accepted
        self._is_plain = is_plain

    def ingest(self, packets: Sequence[Packet], block: bytes, hand_over: Callable[[int, bytes], None]) -> None:
        """Ingest a batch; `block` has all its packets. Each packet that needs the slow path is handed over to its
        connection, by descriptor, and the batch goes on with the next one. A batch of one packet is handed over, too.

        After an unexpected error all packets are handed over: each connection then has its own error, or none. Lines
        may be ingested twice.
        """
        bounds = list(accumulate(map(PACKET_SIZE, packets), initial=0))
        first, batched = 0, self._is_plain is None or self._is_plain(block)
        while first < len(packets):
            stop = first
            if batched and len(packets) - first > 1:
                try:
                    stop, position = self._take_packets(block, bounds, first)
                except Exception:  # the boundary of a batch
                    log.exception("packets.batch_failed", packets=len(packets) - first)
                    batched = False
            if stop > first:
                now_s = trio.current_time()
                self._on_accepted(credit_batch(packets[first:stop], position, now_s, self._now_ms()))
            if stop < len(packets):
                hand_over(packets[stop][0], block[bounds[stop] : bounds[stop + 1]])
            first = stop + 1

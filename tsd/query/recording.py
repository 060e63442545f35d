"""Pages of rows as they were decoded and downsampled → whole hours to be remembered."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tsd.codec.cell import COLUMN, MS_MARK
from tsd.codec.rowkey import Layout
from tsd.query.bucketed import Bucketed, joined
from tsd.query.decode import Decoded
from tsd.query.points import Int64
from tsd.query.remembered import Hour
from tsd.store.cells import CellPage
from tsd.store.changes import Signing

LATEST_MS = 10_000  # a cell younger than this may share its millisecond with one that is yet to come
ROW_SPAN_MS = 1 << 22  # the offsets that a qualifier of milliseconds has room for


class _Piece(NamedTuple):
    """Some rows of an hour."""

    keys: Sequence[bytes]  # of each row
    points: Int64  # of each row
    sizes: Int64  # of each row
    buckets: Bucketed
    names_size: int


class Recording:
    """The hours of a range while they are read, all rows of all their series. `take` may be called in a thread."""

    def __init__(self, layout: Layout, bases: Sequence[int], *, signs: bool, now_ms: int, room: int) -> None:
        """`bases` are of the hours to be recorded, in order, until their buckets have `room` bytes. `signs`: others may
        write to them, and they are recorded with the signatures of their cells, if those tell of every change. `now_ms`
        is when the reading began."""
        self._room = self._limit = room
        self._layout = layout
        self._pieces: dict[int, list[_Piece]] = {base: [] for base in bases}
        self._signing = Signing(layout.pairs_start) if signs else None
        self._newest_ms = now_ms - LATEST_MS

    def take(self, page: CellPage, decoded: Decoded, buckets: Bucketed) -> None:
        """Take in a page, its rows in order."""
        at, end = self._layout.metric_end, self._layout.pairs_start
        if not page.keys:
            return
        if len(decoded.row_of) != len(page.keys):  # not all of them were wanted
            first, last = (int.from_bytes(key[at:end], "big") for key in (page.keys[0], page.keys[-1]))
            for base_s in [base_s for base_s in self._pieces if first <= base_s <= last]:
                self._leave_out(base_s)
            return
        bases = np.frombuffer(b"".join([key[at:end] for key in decoded.keys]), ">u4").astype(np.int64)
        cells = _sizes(page)
        edges = [0, *(np.flatnonzero(np.diff(bases)) + 1).tolist(), len(bases)]
        for first, stop in pairwise(edges):
            base_s = int(bases[first])
            if base_s not in self._pieces:
                continue
            part = slice(*np.searchsorted(decoded.row_of, (first, stop)).tolist())
            if not decoded.plain[first:stop].all() or not self._signed(page, part, cells, base_s):
                self._leave_out(base_s)
                continue
            piece = _piece(decoded, buckets.between(first, stop), slice(first, stop), part, cells)
            self._pieces[base_s].append(piece)
            self._room -= piece.buckets.values.nbytes
        while self._room < 0:
            self._leave_out(next(reversed(self._pieces)))

    def _leave_out(self, base_s: int) -> None:
        self._room += sum(piece.buckets.values.nbytes for piece in self._pieces.pop(base_s))

    @property
    def size(self) -> int:
        """Bytes of buckets that are recorded."""
        return self._limit - self._room

    def _signed(self, page: CellPage, part: slice, cells: "_CellSizes", base_s: int) -> bool:
        """Sign the cells of an hour; whether signatures will tell of every change."""
        if self._signing is None:
            return True
        times_ms = np.array(page.times_ms[part], np.int64)
        if times_ms.max() >= self._newest_ms or cells.values[part].sum() < cells.names[part].sum():
            return False  # or what is signed is more than what it stands for
        # An OpenTSDB that stamps cells with the time of their points writes another value at the same time.
        own = np.flatnonzero((times_ms >= base_s * 1000) & (times_ms < base_s * 1000 + ROW_SPAN_MS)).tolist()
        columns = page.columns[part]
        if any(last_offset_ms(columns[at]) == times_ms[at] - base_s * 1000 for at in own):
            return False
        self._signing.add(page.keys[part], columns, cells.values[part], page.times_ms[part])
        return True

    def finish(self) -> list[Hour]:
        """The hours that can be remembered, those without rows among them."""
        signatures = self._signing.finish() if self._signing else {}
        first, end = self._layout.metric_end, self._layout.pairs_start
        signed: dict[int, dict[bytes, bytes]] = {base_s: {} for base_s in self._pieces}
        for prefix, signature in signatures.items():
            signed.get(int.from_bytes(prefix[first:end], "big"), {})[prefix] = signature
        hours: list[Hour] = []
        for base_s, pieces in self._pieces.items():
            known = hours[-1].pairs if hours else ()
            hours.append(_hour(base_s, pieces, end, known)._replace(signatures=signed[base_s]))
        return hours


class _CellSizes(NamedTuple):
    """Bytes of a page's cells."""

    names: Int64  # keys and columns
    columns: Int64
    values: Int64


def _sizes(page: CellPage) -> _CellSizes:
    count = len(page.keys)
    columns = np.fromiter(map(len, page.columns), np.int64, count)
    values = np.fromiter(map(len, page.values), np.int64, count) - page.ahead
    return _CellSizes(np.fromiter(map(len, page.keys), np.int64, count) + columns, columns, values)


def _piece(decoded: Decoded, buckets: Bucketed, rows: slice, part: slice, cells: _CellSizes) -> _Piece:
    """Some rows of a page, and their buckets; `part` are their cells."""
    sizes = cells.columns[part] + cells.values[part]
    return _Piece(
        decoded.keys[rows],
        np.diff(decoded.batch.starts[rows.start : rows.stop + 1]),
        np.bincount(decoded.row_of[part] - rows.start, sizes, rows.stop - rows.start).astype(np.int64),
        buckets,
        int(cells.names[part].sum()),
    )


def _hour(base_s: int, pieces: Sequence[_Piece], pairs_start: int, known: tuple[bytes, ...]) -> Hour:
    """One hour out of its pieces; `known` are the pairs of another, which are shared where they are the same."""
    pairs = tuple(key[pairs_start:] for piece in pieces for key in piece.keys)
    starts, stamps, values = joined([piece.buckets for piece in pieces])
    none = np.empty(0, np.int64)
    return Hour(
        base_s,
        known if known == pairs else pairs,
        np.concatenate([none, *(piece.points for piece in pieces)]).astype(np.int32),
        np.concatenate([none, *(piece.sizes for piece in pieces)]),
        Bucketed(starts.astype(np.int32), (stamps - base_s * 1000).astype(np.uint32), values),
        sum(piece.names_size for piece in pieces),
    )


def last_offset_ms(column: bytes) -> int:
    """How far after its base time the last point of a cell is, in ms.

    >>> last_offset_ms(b"t:" + bytes.fromhex("00130f93")), last_offset_ms(b"t:" + bytes.fromhex("f0000043"))
    (249000, 1)
    """
    if column[len(COLUMN)] >= MS_MARK:
        return (int.from_bytes(column[-4:], "big") & 0x0FFFFFC0) >> 6
    return (int.from_bytes(column[-2:], "big") >> 4) * 1000

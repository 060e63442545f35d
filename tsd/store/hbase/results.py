"""Rows with versions from answers of HBase's Thrift 2, as arrays.

A compiled loop reads them from a receive buffer. thriftpy2, which creates an object for each version, takes ten times
as long.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tsd.store.cells import Cell
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift_codec import TIME_BITS, RowReader, Steps, all_steps
from tsd.store.versions import VersionColumns, columns_of

try:
    from tsd.store.hbase import _results
except ImportError:  # installed without a C compiler
    HAS_RESULT_LOOP = False
else:
    HAS_RESULT_LOOP = not os.environ.get("TSD_PURE")  # see tsd.store.cells


class Results(NamedTuple):
    """Rows of an answer."""

    rows: Sequence[bytes | None]  # None: without versions
    columns: VersionColumns  # of those rows that have any, row after row


def read_by_thriftpy(answer: Sequence[Any]) -> Results:
    """Return rows that thriftpy2 has read. Raise NoAnswer if a field is missing."""
    rows: list[bytes | None] = []
    found: list[tuple[bytes, list[Cell]]] = []
    for result in answer:
        if not result.columnValues:
            rows.append(None)
            continue
        if result.row is None:
            raise NoAnswer("got versions without a row")
        rows.append(result.row)
        found.append((result.row, [_cell(each) for each in result.columnValues]))
    return Results(rows, columns_of(found))


def _cell(each: Any) -> Cell:
    if None in (each.family, each.qualifier, each.value, each.timestamp) or each.timestamp.bit_length() > TIME_BITS:
        raise NoAnswer("got a version without a column, a value or a valid time")
    return Cell(each.family + b":" + each.qualifier, each.value, each.timestamp)


class ResultReader(RowReader):
    """Reads rows with versions from the answers of one connection. It needs the compiled loop."""

    def read_results(self, name: bytes, number: int) -> Results:
        """Return the answer to the call `name` with that number. Raise OtherAnswer, NoAnswer, EOFError, OSError."""
        return all_steps(self._reading_results(name, number))

    def _reading_results(self, name: bytes, number: int) -> Steps[Results]:
        at, left = yield from self._begin(name, number)
        rows: list[bytes | None] = []
        places: list[tuple[bytes, bytes]] = []
        counts: list[int] = []
        arrays: list[tuple[bytes, bytes, bytes]] = []
        parser = _results.ResultParser(at)
        while left:
            done, at, valid = parser.parse(self._buffer, self._have, left, rows, places, counts, arrays)
            left -= done
            yield from self._continue(at, left, valid=valid)
        yield from self._end(at)
        bounds = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(np.array(counts, np.int64), out=bounds[1:])
        times, lengths, values = (b"".join(part) for part in zip(*arrays, strict=True)) if arrays else (b"", b"", b"")
        ends = np.cumsum(np.frombuffer(lengths, np.int64))
        return Results(rows, VersionColumns(places, bounds, np.frombuffer(times, np.int64), ends, values))

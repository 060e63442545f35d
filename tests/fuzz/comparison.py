"""Lines through the daemon's own way in, held against the slow reference: verdicts, words and stored points."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.fuzz import reference
from tests.fuzz.lines import Lines
from tsd.codec.columns import sort_columns
from tsd.codec.putline import NameRules
from tsd.codec.rowkey import Layout
from tsd.codec.uid import Widths
from tsd.errors import INVALID_VALUE, BadLine
from tsd.ingest.lines import LineBuffer, TooLong
from tsd.ingest.names import Creates, SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import KeyParts, SeriesTable, SeriesText
from tsd.store.memory import MemoryStore
from tsd.uids import Uids

MAX_LINE = 1024
RULES = NameRules()
WINDOW_LINES = 20_000  # taken at once
TABLE_LINES = 200_000  # after so many the table of series is a new one: strange names fill it

MakeRows = Callable[[], OpenRows]
Point = tuple[bool, int, bytes]  # in ms, flags, value
PointKey = tuple[str, tuple[tuple[str, str], ...], int]


class Told(NamedTuple):
    """What became of a line."""

    verdict: str  # "stored", "command", "too long" or why it was refused
    reason: str = ""


class Disagreement(AssertionError):
    """The daemon and the reference say different things of a line."""


def rows_by(by_loop: bool) -> MakeRows:
    """Makes what is under test: the compiled loop, or its twin."""
    return lambda: OpenRows(SeriesTable(by_loop=by_loop), RULES)


class Contest:
    """Daemon against reference, block by block."""

    def __init__(self, make_rows: MakeRows, chance: random.Random) -> None:
        self._make_rows = make_rows
        self._chance = chance
        self._drawn = Lines(chance)
        uids = Uids(MemoryStore(lambda: 0), "tsdb-uid", Widths())  # names are judged, and no UID is asked for
        self._names = SeriesNames(uids, Layout(), RULES, Creates(metrics=True, tagks=True, tagvs=True))
        self.rows = make_rows()
        self._wanted: dict[PointKey, Point] = {}
        self._of_window = self._of_table = 0
        self.verdicts: dict[str, int] = {}

    def run(self, lines: int) -> None:
        """So many lines. Raises Disagreement."""
        while lines > 0:
            text = self._drawn.block(self._chance.choice((1, 5, 30, 100, 1500)))
            lines -= text.count(b"\n")
            self.play(text)
        self._compare_points()

    def play(self, text: bytes) -> None:
        """One stretch of a stream, cut anywhere."""
        wanted = [self._judged(line) for line in split_lines(text)]
        got = list(self._absorbed(text))
        for line, ours, theirs in zip(split_lines(text), got, wanted, strict=False):
            if ours != theirs:
                raise Disagreement(f"{line!r}: {ours}, the reference says {theirs}")
        if len(got) != len(wanted):
            raise Disagreement(f"{len(got)} verdicts for {len(wanted)} lines: {text!r}")
        for told in wanted:
            name = told.verdict if told.verdict in ("stored", "command", "too long") else "refused"
            self.verdicts[name] = self.verdicts.get(name, 0) + 1
        self._of_window += len(wanted)
        if self._of_window >= WINDOW_LINES:
            self._compare_points()

    def _judged(self, line: bytes) -> Told:
        if len(line) > MAX_LINE:
            return Told("too long")
        if line != b"put" and not line.startswith(b"put "):
            return Told("command")
        try:
            point = reference.judge(line)
        except reference.Refused as refused:
            words = str(refused)
            return Told(words, INVALID_VALUE if words.startswith("invalid value") else "illegal_arguments")
        self._wanted[point.metric, point.tags, point.ms] = point.in_ms, point.flags, point.value
        return Told("stored")

    def _absorbed(self, text: bytes) -> Iterator[Told]:
        buffer = LineBuffer(MAX_LINE)
        at = 0
        while at < len(text):
            size = self._chance.choice((1 << 18, 1 << 18, 1000, 100, 7, 1))
            for piece in buffer.feed(text[at : at + size]):
                if isinstance(piece, TooLong):
                    yield Told("too long")
                else:
                    yield from self._take(piece)
            at += size
        assert not buffer.tail

    def _take(self, block: bytes) -> Iterator[Told]:
        """As a session takes a block: put lines together, others one by one."""
        while block:
            absorbed = self._absorb(block)
            rejects = {reject.line: reject.error for reject in absorbed.rejects}
            for line in range(absorbed.accepted + len(rejects)):
                error = rejects.get(line)
                yield Told("stored") if error is None else Told(str(error), error.reason)
            if absorbed.rest == block:
                yield Told("command")
                block = block[block.index(b"\n") + 1 :]
            else:
                block = absorbed.rest

    def _absorb(self, block: bytes) -> Any:
        verdicts: dict[SeriesText, BadLine | None] = {}
        absorbed = self.rows.absorb(block, verdicts)
        while absorbed.strangers:
            judged = self._names.judge(absorbed.strangers)
            verdicts.update(judged.refused)
            for text, tags in judged.good.items():
                named = b" ".join(sorted(b"=".join(pair) for pair in tags))
                self.rows.table.enter(text, KeyParts(text.metric, named))
            absorbed = self.rows.absorb(block, verdicts)
        return absorbed

    def _compare_points(self) -> None:
        """Take the window, and hold its points against those of the reference."""
        found: dict[PointKey, Point] = {}
        columns = sort_columns(self.rows.take(), join=True)
        for number, moment, flags, bits in zip(*[column.tolist() for column in columns], strict=True):
            parts = self.rows.table.parts(number)
            assert parts is not None
            tags = tuple(sorted(tuple(pair.split("=")) for pair in parts.after.decode("latin-1").split(" ")))
            size = (flags & 7) + 1
            value = (bits & (1 << 64) - 1).to_bytes(8, "big")[8 - size :]
            found[parts.before.decode("latin-1"), tags, moment >> 1] = bool(moment & 1), flags, value  # type: ignore[index]
        if found != self._wanted:
            odd = next(key for key in {**found, **self._wanted} if found.get(key) != self._wanted.get(key))
            raise Disagreement(f"{odd}: stored {found.get(odd)}, the reference says {self._wanted.get(odd)}")
        self._wanted.clear()
        self._of_table += self._of_window
        self._of_window = 0
        if self._of_table >= TABLE_LINES:
            self._of_table = 0
            self.rows = self._make_rows()


def split_lines(text: bytes) -> list[bytes]:
    """The lines of a stream that ends with LF, without LF, or CR and LF."""
    return [line.removesuffix(b"\r") for line in text.split(b"\n")[:-1]]

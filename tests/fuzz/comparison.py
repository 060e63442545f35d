"""Compare the daemon's parsing of lines with the slow reference: verdicts, messages and stored points."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.fuzz import reference
from tests.fuzz.lines import Lines
from tsd.codec.points import sort_columns
from tsd.codec.putline import NameRules, split_tags
from tsd.errors import INVALID_VALUE, BadLine
from tsd.ingest.lines import LineBuffer, TooLong
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SeriesKey, SeriesText

MAX_LINE = 1024
RULES = NameRules()
WINDOW_LINES = 20_000  # per window
TABLE_LINES = 200_000  # per table of series: unknown names fill it

MakeWindow = Callable[[], OpenWindow]
Point = tuple[bool, int, bytes]  # in ms, flags, value
PointKey = tuple[str, tuple[tuple[str, str], ...], int]


class Verdict(NamedTuple):
    """The result of a line."""

    verdict: str  # "stored", "command", "too long" or the error message
    reason: str = ""


class Disagreement(AssertionError):
    """The daemon and the reference disagree about a line."""


def window_by(compiled: bool) -> MakeWindow:
    """Return a factory of open windows with the compiled loop, or with its Python twin."""
    return lambda: OpenWindow(SeriesTable(compiled=compiled), RULES)


class Comparison:
    """Compares daemon and reference block by block."""

    def __init__(self, make_window: MakeWindow, rng: random.Random) -> None:
        self._make_window = make_window
        self._rng = rng
        self._drawn = Lines(rng)
        self.open_window = make_window()
        self._wanted: dict[PointKey, Point] = {}
        self._of_window = self._of_table = 0
        self.verdicts: dict[str, int] = {}

    def run(self, lines: int) -> None:
        """Compare this many lines. Raise Disagreement."""
        while lines > 0:
            text = self._drawn.block(self._rng.choice((1, 5, 30, 100, 1500)))
            lines -= text.count(b"\n")
            self.play(text)
        self._compare_points()

    def play(self, text: bytes) -> None:
        """Compare one block of a stream, cut anywhere."""
        wanted = [self._judged(line) for line in split_lines(text)]
        got = list(self._absorbed(text))
        for line, ours, theirs in zip(split_lines(text), got, wanted, strict=False):
            if ours != theirs:
                raise Disagreement(f"{line!r}: {ours}, the reference says {theirs}")
        if len(got) != len(wanted):
            raise Disagreement(f"{len(got)} verdicts for {len(wanted)} lines: {text!r}")
        for verdict in wanted:
            name = verdict.verdict if verdict.verdict in ("stored", "command", "too long") else "refused"
            self.verdicts[name] = self.verdicts.get(name, 0) + 1
        self._of_window += len(wanted)
        if self._of_window >= WINDOW_LINES:
            self._compare_points()

    def _judged(self, line: bytes) -> Verdict:
        if len(line) > MAX_LINE:
            return Verdict("too long")
        if line != b"put" and not line.startswith(b"put "):
            return Verdict("command")
        try:
            point = reference.judge(line)
        except reference.Refused as refused:
            words = str(refused)
            return Verdict(words, INVALID_VALUE if words.startswith("invalid value") else "illegal_arguments")
        self._wanted[point.metric, point.tags, point.ms] = point.in_ms, point.flags, point.value
        return Verdict("stored")

    def _absorbed(self, text: bytes) -> Iterator[Verdict]:
        buffer = LineBuffer(MAX_LINE)
        at = 0
        while at < len(text):
            size = self._rng.choice((1 << 18, 1 << 18, 1000, 100, 7, 1))
            for piece in buffer.feed(text[at : at + size]):
                if isinstance(piece, TooLong):
                    yield Verdict("too long")
                else:
                    yield from self._take(piece)
            at += size
        assert not buffer.tail

    def _take(self, block: bytes) -> Iterator[Verdict]:
        """Process a block as a session does: put lines together, other commands one by one."""
        while block:
            absorbed = self._absorb(block)
            rejects = {reject.line: reject.error for reject in absorbed.rejects}
            for line in range(absorbed.accepted + len(rejects)):
                error = rejects.get(line)
                yield Verdict("stored") if error is None else Verdict(str(error), error.reason)
            if absorbed.rest == block:
                yield Verdict("command")
                block = block[block.index(b"\n") + 1 :]
            else:
                block = absorbed.rest

    def _absorb(self, block: bytes) -> Any:
        verdicts: dict[SeriesText, BadLine | None] = {}
        absorbed = self.open_window.absorb(block, verdicts)
        while absorbed.unknown:
            for text in absorbed.unknown:
                error = self.open_window.validator.check(text)
                if error is not None:
                    verdicts[text] = error
                    continue
                named = b" ".join(sorted(b"=".join(pair) for pair in split_tags(text.tags)))
                self.open_window.table.insert(text, SeriesKey(text.metric, named))
            absorbed = self.open_window.absorb(block, verdicts)
        return absorbed

    def _compare_points(self) -> None:
        """Take the window and compare its points with the reference."""
        found: dict[PointKey, Point] = {}
        columns = sort_columns(self.open_window.take(), join=True)
        for number, moment, flags, bits in zip(*[column.tolist() for column in columns], strict=True):
            parts = self.open_window.table.key_of(number)
            assert parts is not None
            tags = tuple(sorted(tuple(pair.split("=")) for pair in parts.tail.decode("latin-1").split(" ")))
            size = (flags & 7) + 1
            value = (bits & (1 << 64) - 1).to_bytes(8, "big")[8 - size :]
            found[parts.head.decode("latin-1"), tags, moment >> 1] = bool(moment & 1), flags, value  # type: ignore[index]
        if found != self._wanted:
            odd = next(key for key in {**found, **self._wanted} if found.get(key) != self._wanted.get(key))
            raise Disagreement(f"{odd}: stored {found.get(odd)}, the reference says {self._wanted.get(odd)}")
        self._wanted.clear()
        self._of_table += self._of_window
        self._of_window = 0
        if self._of_table >= TABLE_LINES:
            self._of_table = 0
            self.open_window = self._make_window()


def split_lines(text: bytes) -> list[bytes]:
    """Split a stream that ends with LF into lines without LF or CR LF."""
    return [line.removesuffix(b"\r") for line in text.split(b"\n")[:-1]]

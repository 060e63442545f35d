"""Generate put lines of every kind from a seed, each with its expected point, without using a parser."""

import random
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

HOUR_S = 3600
FIRST_MS = 1 << 32  # times from here on are in milliseconds
FLOAT = 8

INTEGERS = {  # limits of each width, by flags
    0: (0, 1, -1, 127, -128, 42),
    1: (128, -129, 32767, -32768, 255, 256),
    3: (32768, -32769, (1 << 31) - 1, -(1 << 31), 65535, 65536),
    7: (1 << 31, -(1 << 31) - 1, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1, 1 << 32),
}
FLOATS = {
    FLOAT | 3: (
        0.0, -0.0, 42.5, -1.5, 16777216.0, 2.0**-149, 2.0**-126, 3.4028234663852886e38, -3.4028234663852886e38, 1e3,
    ),
    FLOAT | 7: (
        0.1, -0.1, 16777217.0, 2.0**-150, 3.4028235677973366e38, 3.5e38, 5e-324, 2.2250738585072014e-308,
        1.7976931348623157e308, -1.7976931348623157e308, 1e-46, 9007199254740993.0, 1 / 3,
    ),
}  # fmt: skip
WIDTHS = tuple(INTEGERS | FLOATS)
OFFSETS_S = (0, 1, 59, 60, 1799, 3598, 3599)
OFFSETS_MS = (0, 1, 499, 500, 999, 1000, 59_999, 3_599_000, 3_599_999)


class Series(NamedTuple):
    """A series: names as bytes, tags sorted by name."""

    metric: bytes
    tags: tuple[tuple[bytes, bytes], ...]


class Sent(NamedTuple):
    """One line without its end, and its point."""

    line: bytes
    series: Series
    time: int  # seconds below FIRST_MS, else milliseconds
    number: int | float

    @property
    def instant_ms(self) -> int:
        """The time in ms."""
        return self.time if self.time >= FIRST_MS else self.time * 1000


def block(lines: Iterable[Sent]) -> bytes:
    """Join lines for a socket."""
    return b"".join(sent.line + b"\n" for sent in lines)


class Generator:
    """Generates random lines of some series and hours."""

    def __init__(
        self,
        seed: int,
        series: Sequence[Series],
        hours: Sequence[int],
        *,
        millis: Sequence[int] = (),
        widths: Iterable[int] = WIDTHS,
        plain: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self._series = series
        self._hours = hours  # Unix seconds, multiples of HOUR_S
        self._millis = millis or [hour for hour in hours if hour * 1000 >= FIRST_MS]  # hours that may have ms points
        self._widths = tuple(widths)  # allowed flags of values
        self._plain = plain  # numbers as agents write them: digits, sign, point and exponent only

    def lines(self, count: int, *, once_an_instant: bool = False) -> list[Sent]:
        """Return lines for different columns in random order; or for different instants of a series."""
        found: dict[object, Sent] = {}
        while len(found) < count:
            series, time, flags = self._random.choice(self._series), self._time(), self._random.choice(self._widths)
            instant = time if time >= FIRST_MS else time * 1000
            place = (series, instant) if once_an_instant else (series, time, flags)
            found.setdefault(place, self._sent(series, time, self._number(flags)))
        return list(found.values())

    def again(self, lines: Sequence[Sent], count: int, *, changed: bool) -> list[Sent]:
        """Return points of some lines again, spelled differently; with other values of the same width if `changed`."""
        return [
            self._sent(was.series, was.time, self._number(flags_of(was.number)) if changed else was.number)
            for was in self._random.sample(lines, count)
        ]

    def instead(self, lines: Sequence[Sent], count: int) -> list[Sent]:
        """Return lines for instants of some lines, with values of any width."""
        return [
            self._sent(was.series, was.time, self._number(self._random.choice(self._widths)))
            for was in self._random.sample(lines, count)
        ]

    def _time(self) -> int:
        form = self._random.random()
        if form < 0.55:
            offset = self._random.choice(OFFSETS_S) if form < 0.1 else self._random.randrange(HOUR_S)
            return max(self._random.choice(self._hours) + offset, 1)
        offset_ms = self._random.choice(OFFSETS_MS) if form < 0.65 else self._random.randrange(HOUR_S * 1000)
        return self._random.choice(self._millis) * 1000 + offset_ms

    def _number(self, flags: int) -> int | float:
        """Return a number of that type and width."""
        if self._random.random() < 0.2:
            return self._random.choice((INTEGERS | FLOATS)[flags])
        while True:
            raw = self._random.randbytes((flags & 7) + 1)
            if flags & FLOAT:
                number: int | float = struct.unpack(">f" if flags == FLOAT | 3 else ">d", raw)[0]
            else:
                number = int.from_bytes(raw, "big", signed=True)
            if abs(number) < float("inf") and flags_of(number) == flags:
                return number

    def _sent(self, series: Series, time: int, number: int | float) -> Sent:
        words = (b"put", series.metric, self._spell_time(time), self._spell_number(number), self._spell_tags(series))
        return Sent(b" ".join(words), series, time, number)

    def _spell_time(self, time: int) -> bytes:
        form = self._random.randrange(12)
        if form == 0:
            return b"+%d" % time
        if form == 1 and time >= 10**12:
            return b"%d.%03d" % divmod(time, 1000)
        return b"%d" % time

    def _spell_number(self, number: int | float) -> bytes:
        form = self._random.randrange(10)
        if isinstance(number, int):
            if form == 0 and number >= 0:
                return b"+%d" % number
            if form == 1 and abs(number) < 10**15:
                return b"%s000%d" % (b"-" if number < 0 else b"", abs(number))
            return b"%d" % number
        plain = (repr(number), repr(number).replace("e+", "e"), f"{number:.17e}", f"{number:.20E}")
        odd = (f"{number!r}f", f"{number!r}D", number.hex(), number.hex().replace("p", "P") + "d")
        return self._random.choice(plain if self._plain else plain + odd).encode()

    def _spell_tags(self, series: Series) -> bytes:
        tags = self._random.sample(series.tags, len(series.tags))
        if self._random.random() < 0.1:
            tags.append(self._random.choice(tags))  # a duplicate tag counts once
        blanks = [self._random.choice((b"  ", b"   ")) if self._random.random() < 0.1 else b" " for _ in tags]
        text = b"".join(blank + b"=".join(tag) for blank, tag in zip(blanks, tags, strict=True))
        return text[1:] + (b" " if self._random.random() < 0.05 else b"")


def flags_of(number: int | float) -> int:
    """Return the flags of a stored number: its length minus one, and FLOAT for a float."""
    if isinstance(number, int):
        return next(length - 1 for length in (1, 2, 4, 8) if -(1 << 8 * length - 1) <= number < 1 << 8 * length - 1)
    try:
        single = struct.unpack(">f", struct.pack(">f", number))[0]
    except OverflowError:
        return FLOAT | 7
    return FLOAT | (3 if single == number else 7)


def last_of_each_instant(lines: Iterable[Sent]) -> dict[Series, dict[int, Sent]]:
    """Return the line that wins for each instant in ms, by series."""
    found: dict[Series, dict[int, Sent]] = {}
    for sent in lines:
        found.setdefault(sent.series, {})[sent.instant_ms] = sent
    return found


def waves(lines: Iterable[Sent]) -> list[list[Sent]]:
    """Split lines into waves, so that a wave has each instant of a series once: first lines of all instants, then
    second lines, and so on."""
    found: list[list[Sent]] = []
    met: Counter[tuple[Series, int]] = Counter()
    for sent in lines:
        which = met[sent.series, sent.instant_ms]
        met[sent.series, sent.instant_ms] += 1
        if which == len(found):
            found.append([])
        found[which].append(sent)
    return found


def series(metric: bytes, tags: bytes) -> Series:
    """Parse a series with its tags as on a line."""
    pairs = (tag.partition(b"=") for tag in tags.split())
    return Series(metric, tuple(sorted((tagk, tagv) for tagk, _, tagv in pairs)))

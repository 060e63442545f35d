"""Copy points from one table layout to another, metric by metric: the part of `tsd copy` for KairosDB's and
Heroic's tables."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import numpy as np
import trio

from tsd.codec.points import Columns, Int32, Int64
from tsd.codec.putline import FIRST_MS, LAST_BASE_MS, NameRules, check_series
from tsd.codec.text import counted, illegal_character
from tsd.errors import ILLEGAL_ARGUMENT, BadLine
from tsd.tables import Tables
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.reading import EncodedPage, HistogramPage, PointPage, ScanRange, Selection, SeriesRequest, TextPage
from tsd.tables.stored_windows import series_tags, window_columns
from tsd.tables.writing import SeriesKey, SeriesKeys, SeriesLookup, SeriesText

WINDOW_POINTS = 200_000  # written together
SHOWN = 100  # refused series that are reported one by one
ALL_HOURS = ScanRange(0, (LAST_BASE_MS + 1) // 1000)
ALL_TIMES = ScanRange(-9_223_372 * 10**9, 9_223_372 * 10**9)  # of KairosDB's tables: of times in 64 bits


class Rename(NamedTuple):
    """A rule for names that the target cannot spell: what matches is replaced."""

    pattern: re.Pattern[str]
    replacement: str


def parse_rename(text: str) -> Rename:
    """Return the rule of PATTERN=REPLACEMENT. Raise ValueError.

    >>> parse_rename("[ :]=_").replacement
    '_'
    """
    pattern, equals, replacement = text.rpartition("=")
    if not equals or not pattern:
        raise ValueError(f"got {text!r}, wanted PATTERN=REPLACEMENT")
    try:
        return Rename(re.compile(pattern), replacement)
    except re.error as exc:
        raise ValueError(f"got {text!r}: {exc}") from None


class Target(NamedTuple):
    """Where points go."""

    tables: Tables
    rules: NameRules
    renames: Sequence[Rename]
    changing: Callable[[Columns, SeriesLookup], AbstractAsyncContextManager[None]] = lambda *_: nullcontext()


class PointCopyStats:
    """What was copied, also before an interruption."""

    def __init__(self, saved: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`saved` has the attributes of the interrupted copy."""
        self.metrics = 0
        self.points = 0
        self.refused_points = 0
        self.expiring_points = 0  # copied without their time to live
        self.texts = 0  # not copied
        self.annotations = 0  # likewise
        self.histograms = 0  # likewise
        self.refused: list[str] = []  # the first reasons
        self.warnings: list[str] = []
        vars(self).update(saved)

    def not_copied(self) -> list[str]:
        """Return how many texts, annotations and histograms the source has, as far as there are any."""
        kinds = ((self.texts, "text"), (self.annotations, "annotation"), (self.histograms, "histogram"))
        return [counted(count, kind) for count, kind in kinds if count]

    def refuse(self, series: str, reason: str) -> None:
        """Record a series that the target refuses."""
        if len(self.refused) < SHOWN:
            self.refused.append(f"{series}: {reason}")


def series_text(metric: str, tags: dict[str, str], target: Target) -> SeriesText:
    """Return the text of a series in the target, names mapped by its rules. Raise BadLine."""
    name = _spelled(metric, target)
    pairs = tuple((_spelled(tagk, target), _spelled(tagv, target)) for tagk, tagv in sorted(tags.items()))
    if len(dict(pairs)) < len(pairs):
        raise BadLine(ILLEGAL_ARGUMENT, "two tags have one name after --rename")
    check_series(name, pairs, target.rules)
    return SeriesText(name, b" ".join(b"%b=%b" % pair for pair in pairs))


def _spelled(name: str, target: Target) -> bytes:
    for pattern, replacement in target.renames:
        if _is_valid(name, target.rules):
            break
        name = pattern.sub(replacement, name)
    try:
        return name.encode("latin-1")
    except UnicodeEncodeError as exc:
        raise BadLine(ILLEGAL_ARGUMENT, f"illegal character: {name[exc.start]}") from None


def _is_valid(name: str, rules: NameRules) -> bool:
    try:
        return bool(name) and not illegal_character(name.encode("latin-1"), rules.extra)
    except UnicodeEncodeError:
        return False


async def copy_points(
    source: Tables,
    target: Target,
    checkpoint: Checkpoint,
    progress: Callable[[int], None],
    span: ScanRange = ALL_HOURS,
) -> PointCopyStats:
    """Copy all points of the source, which has them in `span`. An interrupted copy continues after the last metric that
    it completed, with the counts until then. It starts over if the target lacks the last metric with copied points: the
    checkpoint is for another target. Raise TsdError."""
    stats, done = PointCopyStats(), ""
    with checkpoint.lock():
        saved = checkpoint.load() or {}
        if (copied := str(saved.get("copied", ""))) and await _has_metric(target, copied):
            stats, done = PointCopyStats(saved["stats"]), str(saved["metric"])
            click.echo(f"continuing after metric {done}", err=True)
        for metric in await source.catalog.metrics():
            if metric.encode() <= done.encode():
                continue
            before = stats.points
            await _MetricCopy(metric, target, stats, progress).run(source, span)
            await target.tables.writer.sync()
            stats.metrics += 1
            copied = metric if stats.points > before else copied
            checkpoint.save({"metric": metric, "copied": copied, "stats": vars(stats)})
        if source.annotations is not None:
            stats.annotations += len(await source.annotations.global_between(0, LAST_BASE_MS))
        checkpoint.clear()
    return stats


async def _has_metric(target: Target, name: str) -> bool:
    """Return whether the target has a metric of the source. Raise StoreError."""
    try:
        spelled = _spelled(name, target).decode("latin-1")
    except BadLine:
        return False
    return spelled in await target.tables.catalog.metrics()


class _Lookup:
    """Keys and texts of series by their numbers in the source."""

    def __init__(self, keys: Sequence[SeriesKey | None], texts: Sequence[SeriesText | None], first: int) -> None:
        """`first`: positive, and another for each metric."""
        self._keys = keys
        self._texts = texts
        self._first = first

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(self._keys[number] for number in numbers.tolist())

    def text(self, number: int) -> SeriesText | None:
        return self._texts[number]

    def generations(self, numbers: Int32) -> Int64:
        return np.full(len(numbers), self._first, np.int64)


class _MetricCopy:
    """Copies one metric."""

    def __init__(self, metric: str, target: Target, stats: PointCopyStats, progress: Callable[[int], None]) -> None:
        self._metric = metric
        self._target = target
        self._stats = stats
        self._progress = progress
        self._keys: list[SeriesKey | None] = []  # by number; None: the target refuses the series
        self._texts: list[SeriesText | None] = []  # the same
        self._window: list[Columns] = []
        self._points = 0
        self._out_of_range = 0  # points at times that no put line has

    async def run(self, source: Tables, span: ScanRange) -> None:
        selection = await source.reader.select(SeriesRequest(self._metric, counts_expiring=True))
        await selection.read(span, partial(self._take, selection), annotations=True)
        await self._write()
        if self._out_of_range:
            wanted = "wanted times from 1970 to 2106, and whole seconds until 1970-02-19"
            self._stats.refuse(self._metric, f"{counted(self._out_of_range, 'point')} refused for the time, {wanted}")
        if selection.texts is not None:
            await selection.texts.read(span, partial(self._count_texts, selection))
        if selection.histograms is not None:
            await selection.histograms.read(span, partial(self._count_histograms, selection))

    async def _count_texts(self, selection: Selection, page: EncodedPage[TextPage]) -> None:
        await selection.series.match(page.series())
        self._stats.texts += len((await trio.to_thread.run_sync(page.decode)).texts)

    async def _count_histograms(self, selection: Selection, page: EncodedPage[HistogramPage]) -> None:
        await selection.series.match(page.series())
        self._stats.histograms += len((await trio.to_thread.run_sync(page.decode)).histograms)

    async def _take(self, selection: Selection, page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())
        decoded = await trio.to_thread.run_sync(page.decode)
        self._stats.expiring_points += decoded.expiring
        self._stats.annotations += len(decoded.annotations)
        self._stats.warnings += decoded.warnings[: SHOWN - len(self._stats.warnings)]
        await self._resolve(selection)
        batch = decoded.batch
        series = np.repeat(batch.series, np.diff(batch.starts)).astype(np.int32)
        is_known = np.array([key is not None for key in self._keys], np.bool_)[series]
        is_in_range = (batch.times > 0) & (batch.times <= LAST_BASE_MS)
        is_in_range &= (batch.times >= FIRST_MS) | (batch.times % 1000 == 0)
        is_copied = is_known & is_in_range
        self._out_of_range += int((is_known & ~is_in_range).sum())
        self._stats.refused_points += int(len(series) - is_copied.sum())
        columns = window_columns(batch).at(is_copied)
        self._window.append(columns)
        self._points += len(columns.series)
        if self._points >= WINDOW_POINTS:
            await self._write()

    async def _resolve(self, selection: Selection) -> None:
        """Look up the keys of new series in the target."""
        for tags in await series_tags(selection.series, len(self._keys)):
            text, key = await self._key(tags)
            self._texts.append(text)
            self._keys.append(key)

    async def _key(self, tags: dict[str, str]) -> tuple[SeriesText | None, SeriesKey | None]:
        shown = f"{self._metric} {' '.join(f'{tagk}={tagv}' for tagk, tagv in tags.items())}"
        try:
            text = series_text(self._metric, tags, self._target)
        except BadLine as error:
            self._stats.refuse(shown, str(error))
            return None, None
        resolved = await self._target.tables.resolver.resolve([text])
        if resolved.refused:
            self._stats.refuse(shown, str(resolved.refused[0]))
            return None, None
        return text, next(iter(resolved.keys))

    async def _write(self) -> None:
        """Write the points of the window."""
        if self._points:
            parts = [np.concatenate(each) for each in zip(*self._window, strict=True)]
            columns, lookup = Columns(*parts), _Lookup(self._keys, self._texts, self._stats.metrics + 1)
            async with self._target.changing(columns, lookup):
                await self._target.tables.writer.write(columns, lookup)
            self._stats.points += self._points
            self._progress(self._points)
        self._window, self._points = [], 0

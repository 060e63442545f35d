"""Lines of rollups, histograms, metadata and texts. They share the window, journal and ledger of put lines. Each is
parsed by itself, because there are few compared with points."""

from collections.abc import Callable

import trio

from tsd.codec.kairosline import NO_TEXT, is_text_line
from tsd.codec.metaline import stamped
from tsd.codec.putline import illegal, map_order, no_summaries
from tsd.errors import BadLine, CorruptRow, StoreError, bare
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.put_lines import Absorbed, Reject
from tsd.lazy import LazyLogger
from tsd.tables.writing import (
    NO_KEY,
    Admission,
    ResolvedSeries,
    SeriesKey,
    SeriesKeys,
    SeriesResolver,
    SeriesText,
    Summary,
    SummaryWriter,
)

log = LazyLogger(__name__)

BATCH_LINES = 200  # lines parsed between checkpoints: each takes 20 µs or more
BATCH_BYTES = 32 << 10  # of these lines: one may have a thousand words

_NOTHING = ResolvedSeries(SeriesKeys.of(()), {})


class Summaries:
    """Parser of lines of rollups, histograms, metadata and texts."""

    def __init__(
        self,
        resolver: SeriesResolver,
        writer: SummaryWriter | None,
        now_ms: Callable[[], int],
        *,
        has_texts: bool = False,
    ) -> None:
        """Without a `writer`, every line is refused as if neither rollups nor histograms were configured. Lines of
        metadata get the time `now_ms` when they are received. `has_texts`: the writer stores texts."""
        self._resolver = resolver
        self._writer = writer
        self._now_ms = now_ms
        self._has_texts = has_texts

    async def absorb(
        self, open_window: OpenWindow, block: bytes, *, journal_only: bool = False, admission: Admission | None = None
    ) -> Absorbed:
        """Absorb the first lines of a block without put lines, and return without a checkpoint after that.

        Raise StoreError if the store does not answer, and CorruptRow if it has no UID table. With `journal_only` these
        are not raised: valid lines are accepted but kept only in the journal.
        """
        lines, rest = _first_lines(block)
        now_ms = self._now_ms()
        lines = [stamped(line, now_ms) for line in lines]
        parsed = [self._parse(line) for line in lines]
        await trio.lowlevel.checkpoint()
        texts = list(dict.fromkeys(series_of(one) for one in parsed if not isinstance(one, BadLine) and one.metric))
        found: dict[SeriesText, SeriesKey | BadLine] | None = None
        try:
            keys, refused = await self._resolver.resolve(texts, admission) if texts else _NOTHING
        except (StoreError, CorruptRow) as error:
            if not journal_only:
                raise
            bare(error)
            log.debug("summaries.left_to_journal", lines=len(lines), error=str(error))
        else:
            found = {text: refused.get(at) or key for at, (text, key) in enumerate(zip(texts, keys, strict=True))}
        return self._insert(open_window, lines, parsed, found, rest)

    def _parse(self, line: bytes) -> Summary | BadLine:
        try:
            if is_text_line(line) and not self._has_texts:
                raise illegal(NO_TEXT)
            if self._writer is None:
                raise no_summaries(line)
            return self._writer.parse(line)
        except BadLine as error:
            return bare(error)

    def _insert(
        self,
        open_window: OpenWindow,
        lines: list[bytes],
        parsed: list[Summary | BadLine],
        found: dict[SeriesText, SeriesKey | BadLine] | None,
        rest: bytes,
    ) -> Absorbed:
        """Insert parsed lines. If `found` is None, accept them, but keep them only in the journal."""
        kept: list[bytes] = []
        rejects: list[Reject] = []
        for at, (line, summary) in enumerate(zip(lines, parsed, strict=True)):
            if isinstance(summary, BadLine):
                rejects.append(Reject(at, summary))
                continue
            key = None if found is None else found[series_of(summary)] if summary.metric else NO_KEY
            if isinstance(key, BadLine):
                rejects.append(Reject(at, key))
                continue
            if key is not None and self._writer is not None:
                open_window.batch(self._writer.new_batch).add(summary, key)
            kept.append(line + b"\n")
        open_window.points += len(kept)
        open_window.complete &= found is not None or not kept
        return Absorbed(len(kept), b"".join(kept), rejects, [], rest)


def series_of(summary: Summary) -> SeriesText:
    """Return the series of a summary."""
    return SeriesText(summary.metric, b" ".join(b"=".join(pair) for pair in map_order(summary.tags)))


def _first_lines(block: bytes) -> tuple[list[bytes], bytes]:
    """Return the first lines of a block, at least one, and the rest.

    >>> _first_lines(b"a\\nb\\n")
    ([b'a', b'b'], b'')
    """
    lines = block.split(b"\n", BATCH_LINES)
    rest = lines.pop()
    size = 0
    for count, line in enumerate(lines):
        if count and size + len(line) > BATCH_BYTES:
            return lines[:count], block[size:]
        size += len(line) + 1
    return lines, rest

"""Series → keys made of the UIDs of their names, or the errors with which their lines are refused.

Names are looked up in batches: first the metrics, then the tag names of those series whose metric has a UID, then their
tag values. So a refused line causes no more new UIDs than in OpenTSDB.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, salt_of
from tsd.codec.putline import Tags, map_order, split_tags
from tsd.errors import ILLEGAL_ARGUMENT, UIDS_EXHAUSTED, UNKNOWN_NAME, BadLine, NoSuchName, TsdError, UidsExhausted
from tsd.store.retry import run_bounded
from tsd.tables.opentsdb.uids import Found, Uids
from tsd.tables.writing import Admission, KeyComposer, ResolvedSeries, SeriesKey, SeriesKeys, SeriesText

try:
    from tsd.tables.opentsdb import _uid_composer
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both

KINDS = (Kind.METRIC, Kind.TAGK, Kind.TAGV)
BATCH_SERIES = 2000  # handled between two trio checkpoints: some milliseconds
MAX_BUCKETS = (1 << 32) - 1  # more buckets than hash values make no difference


class AutoCreate(NamedTuple):
    """Which kinds of unknown names get a UID."""

    metrics: bool
    tagks: bool
    tagvs: bool


Missing = Mapping[Kind, dict[bytes, TsdError]]  # names without a UID, and why


class UidResolver:
    """Resolves series with the UID table: OpenTSDB's `SeriesResolver`."""

    def __init__(self, uids: Uids, layout: KeyLayout, auto_create: AutoCreate, *, compiled: bool = HAS_LOOP) -> None:
        self._uids = uids
        self._layout = layout
        self._creates = dict(zip(KINDS, auto_create, strict=True))
        self._composer = self._make_composer() if compiled else None

    def _make_composer(self) -> "_uid_composer.UidComposer":
        layout = self._layout
        metrics, tagks, tagvs = (self._uids.by_name(kind) for kind in KINDS)
        return _uid_composer.UidComposer(
            metrics, tagks, tagvs, layout.salt_width, min(layout.salt_buckets, MAX_BUCKETS)
        )

    @property
    def composer(self) -> KeyComposer | None:
        """Composes keys from cached UIDs."""
        return self._composer

    async def resolve(self, series: Sequence[SeriesText], admission: Admission | None = None) -> ResolvedSeries:
        """Resolve well-formed series, see `SeriesResolver`."""
        while True:
            drops = self._uids.drops
            resolved = await self._resolve(list(series), admission)
            if drops == self._uids.drops:
                return resolved
            # The caches were dropped meanwhile: what was found before may be stale.

    async def assign(self, series: SeriesText) -> SeriesKey:
        """Return the key of a series and assign all its names. Raise TsdError."""
        tags = map_order(split_tags(series.tags))
        wanted = {
            Kind.METRIC: [series.metric],
            Kind.TAGK: [tagk for tagk, _ in tags],
            Kind.TAGV: [tagv for _, tagv in tags],
        }
        found: dict[Kind, Mapping[bytes, Found]] = {}

        async def find(kind: Kind) -> None:
            found[kind] = await self._uids.find_or_assign(kind, wanted[kind])

        await run_bounded(KINDS, find, limit=len(KINDS))
        for uid in [uid for uids in found.values() for uid in uids.values()]:
            if isinstance(uid, TsdError):
                raise uid
        return self._key(series.metric, tags, found)

    async def _resolve(self, series: list[SeriesText], admission: Admission | None) -> ResolvedSeries:
        """Resolve together all series whose names can be cached, and the others one by one."""
        if self._composer is None:
            return _join_keys(await self._resolve_each(series, admission, {}))
        missing = await self._assign_missing(self._composer, series, admission)
        bounds = np.empty(2 * len(series) + 1, np.int64)
        keys = SeriesKeys(self._composer.compose_all(series, bounds), bounds)
        left = np.flatnonzero(bounds[2::2] == bounds[:-1:2]).tolist()
        if not left:
            return ResolvedSeries(keys, {})
        rest = dict(zip(left, await self._resolve_each([series[at] for at in left], admission, missing), strict=True))
        return _join_keys([rest.get(at, key) for at, key in enumerate(keys)])

    async def _assign_missing(
        self, composer: "_uid_composer.UidComposer", series: list[SeriesText], admission: Admission | None
    ) -> Missing:
        """Look up, or assign, the UIDs of all names that are not cached. If a name gets none, names of the next kinds
        are left to `_resolve_each`, which knows the series that need them. Raise StoreError."""
        missing: dict[Kind, dict[bytes, TsdError]] = {kind: {} for kind in KINDS}
        for at in range(0, len(series), BATCH_SERIES):
            for kind, names in zip(KINDS, composer.missing(series[at : at + BATCH_SERIES]), strict=True):
                found = await self._find(kind, names, admission, missing)
                refused = {name: error for name, error in found.items() if isinstance(error, TsdError)}
                missing[kind].update(refused)
                if refused:
                    break
            await trio.lowlevel.checkpoint()
        return missing

    async def _resolve_each(
        self, series: Sequence[SeriesText], admission: Admission | None, missing: Missing
    ) -> list[SeriesKey | BadLine]:
        """Return the key of each series, or why it has none. Names that are `missing` are not looked up again."""
        tags = [map_order(split_tags(text.tags)) for text in series]
        found: dict[Kind, Mapping[bytes, Found]] = {}
        errors: dict[int, BadLine] = {}

        async def look_up(kind: Kind, names_of: Callable[[int], Iterable[bytes]]) -> None:
            left = [at for at in range(len(series)) if at not in errors]
            names = [name for at in left for name in names_of(at)]
            uids = found[kind] = await self._find(kind, names, admission, missing)
            for at in left:
                error = next((uid for name in names_of(at) if isinstance(uid := uids[name], TsdError)), None)
                if error is not None:
                    errors[at] = _bad_line(error)

        await look_up(Kind.METRIC, lambda at: [series[at].metric])
        await look_up(Kind.TAGK, lambda at: [tagk for tagk, _ in tags[at]])
        await look_up(Kind.TAGV, lambda at: [tagv for _, tagv in tags[at]])
        return [
            errors[at] if at in errors else self._key(text.metric, tags[at], found) for at, text in enumerate(series)
        ]

    async def _find(
        self, kind: Kind, names: Sequence[bytes], admission: Admission | None, missing: Missing
    ) -> Mapping[bytes, Found]:
        if known := missing.get(kind):
            others = [name for name in names if name not in known]
            return {**known, **await self._find(kind, others, admission, {})}
        if not names:
            return {}
        if self._creates[kind]:
            return await self._uids.find_or_assign(kind, names, admission)
        return await self._uids.find(kind, names)

    def _key(self, metric: bytes, tags: Tags, found: Mapping[Kind, Mapping[bytes, Found]]) -> SeriesKey:
        uid = _uid(found[Kind.METRIC][metric])
        pairs = join_pairs((_uid(found[Kind.TAGK][tagk]), _uid(found[Kind.TAGV][tagv])) for tagk, tagv in tags)
        return SeriesKey(salt_of(uid, pairs, self._layout.salt_width, self._layout.salt_buckets) + uid, pairs)


def _uid(found: Found) -> bytes:
    assert isinstance(found, bytes)  # a series with an error was refused before
    return found


def _bad_line(error: TsdError) -> BadLine:
    """Return the error with which a line is refused because one of its names has no UID."""
    if isinstance(error, BadLine):  # from the admission
        return error
    if isinstance(error, NoSuchName):
        return BadLine(UNKNOWN_NAME, f"unknown metric: {error}")
    reason = UIDS_EXHAUSTED if isinstance(error, UidsExhausted) else ILLEGAL_ARGUMENT
    return BadLine(reason, f"illegal argument: {error}")


def _join_keys(found: Sequence[SeriesKey | BadLine]) -> ResolvedSeries:
    keys = SeriesKeys.of(None if isinstance(one, BadLine) else one for one in found)
    return ResolvedSeries(keys, {at: one for at, one in enumerate(found) if isinstance(one, BadLine)})

"""Series never seen → their key parts, by way of their names' UIDs; or the words they are refused with.

Names are judged before any UID is touched, and in batches: first the metrics, then the tag names of those series that
have one, then their tag values, so that a refused line leaves as little behind as it does with OpenTSDB.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import trio

from tsd.bytemap import PlainByteMap
from tsd.codec.putline import NameRules, Tags, check_series, map_order, split_tags
from tsd.codec.rowkey import Layout, join_pairs, salt_of
from tsd.codec.uid import Kind
from tsd.codec.words import LEGAL
from tsd.errors import ILLEGAL_ARGUMENT, UIDS_EXHAUSTED, UNKNOWN_NAME, BadLine, NoSuchName, UidsExhausted, bare
from tsd.ingest import compiled
from tsd.ingest.series import KeyParts, SeriesText
from tsd.uid_flight import Found, Permit
from tsd.uids import Uids

KINDS = (Kind.METRIC, Kind.TAGK, Kind.TAGV)
AT_ONCE = 2000  # strangers that are looked at in one go: some milliseconds


class Creates(NamedTuple):
    """Which kinds of unknown names get a UID."""

    metrics: bool
    tagks: bool
    tagvs: bool


class Judged(NamedTuple):
    """Texts that may name a series, with their tags, and texts that may not."""

    good: dict[SeriesText, Tags]
    refused: dict[SeriesText, BadLine]


Without = Mapping[Kind, dict[bytes, Found]]  # names that have no UID, and why


class Named(NamedTuple):
    """What became of the names of strangers."""

    some: bool  # whether any of them has a UID, so that it is worth to look again who is a stranger
    without: Without


class _Finder(Protocol):
    def __call__(self, text: SeriesText) -> Sequence[Found]: ...


class SeriesNames:
    """What turns texts into key parts."""

    def __init__(self, uids: Uids, layout: Layout, rules: NameRules, creates: Creates) -> None:
        self._uids = uids
        self._layout = layout
        self._rules = rules
        self._creates = {Kind.METRIC: creates.metrics, Kind.TAGK: creates.tagks, Kind.TAGV: creates.tagvs}

        self.known = self._known()  # for the compiled way in

    def _known(self) -> "compiled.KnownNames | None":
        """What enters series whose names all have UIDs, for as long as the caches keep them."""
        metrics, tagks, tagvs = (self._uids.by_name(kind) for kind in KINDS)
        if not compiled.HAS or isinstance(metrics, PlainByteMap):
            return None
        layout, legal = self._layout, LEGAL + self._rules.extra
        buckets = min(layout.salt_buckets, (1 << 32) - 1)  # more than there are hashes make no difference
        return compiled.KnownNames(metrics, tagks, tagvs, legal, self._rules.max_tags, layout.salt_width, buckets)

    async def name(self, strangers: Sequence[SeriesText], permit: Permit | None = None) -> Named:
        """Look up, or assign, the UIDs of all names of well-formed series together, as `resolve` does. Where a name has
        none, those of the next kind wait for `resolve`, which tells whose they are. Raises StoreError, as that does."""
        named = Named(False, {kind: {} for kind in KINDS})
        if self.known is None:
            return named
        for at in range(0, len(strangers), AT_ONCE):
            for kind, names in zip(KINDS, self.known.missing(strangers[at : at + AT_ONCE]), strict=True):
                found = await self._ask(kind, names, permit, named.without)
                without = {name: error for name, error in found.items() if isinstance(error, Exception)}
                named = Named(named.some or len(without) < len(found), named.without)
                named.without[kind].update(without)
                if without:
                    break
            await trio.lowlevel.checkpoint()
        return named

    def judge(self, texts: Iterable[SeriesText]) -> Judged:
        """Which of the texts are well-formed. Asks nobody."""
        judged = Judged({}, {})
        for text in texts:
            try:
                tags = split_tags(text.tags)
                check_series(text.metric, tags, self._rules)
            except BadLine as error:
                judged.refused[text] = bare(error)
            else:
                judged.good[text] = map_order(tags)
        return judged

    async def resolve(
        self, series: Mapping[SeriesText, Tags], permit: Permit | None = None, without: Without | None = None
    ) -> dict[SeriesText, KeyParts | BadLine]:
        """Key parts of well-formed series, UIDs assigned where that is allowed, or why there are none; `permit` is
        asked for each new name, but for those of which it is known that they are `without`. Raises StoreError, and then
        part of the UIDs may have been assigned."""
        while True:
            generation = self._uids.generation
            verdicts = await self._resolve(series, permit, without or {})
            if generation == self._uids.generation:
                return verdicts
            # The caches were dropped meanwhile: what was found before may be what they were dropped for.

    async def _resolve(
        self, series: Mapping[SeriesText, Tags], permit: Permit | None, without: Without
    ) -> dict[SeriesText, KeyParts | BadLine]:
        verdicts: dict[SeriesText, KeyParts | BadLine] = {}
        metrics = await self._ask(Kind.METRIC, [text.metric for text in series], permit, without)
        left = self._sift(series, verdicts, lambda text: [metrics[text.metric]])
        tagks = await self._ask(Kind.TAGK, [tagk for text in left for tagk, _ in series[text]], permit, without)
        left = self._sift(left, verdicts, lambda text: [tagks[tagk] for tagk, _ in series[text]])
        tagvs = await self._ask(Kind.TAGV, [tagv for text in left for _, tagv in series[text]], permit, without)
        left = self._sift(left, verdicts, lambda text: [tagvs[tagv] for _, tagv in series[text]])
        for text in left:
            pairs = join_pairs((_uid(tagks[tagk]), _uid(tagvs[tagv])) for tagk, tagv in series[text])
            verdicts[text] = self._parts(_uid(metrics[text.metric]), pairs)
        return verdicts

    async def _ask(
        self, kind: Kind, names: Sequence[bytes], permit: Permit | None, without: Without
    ) -> Mapping[bytes, Found]:
        if told := without.get(kind):
            others = [name for name in names if name not in told]
            return {**told, **await self._ask(kind, others, permit, {})}
        if not names:
            return {}
        if self._creates[kind]:
            return await self._uids.find_or_assign(kind, names, permit)
        return await self._uids.find(kind, names)

    def _sift(
        self,
        texts: Iterable[SeriesText],
        verdicts: dict[SeriesText, KeyParts | BadLine],
        found: _Finder,
    ) -> list[SeriesText]:
        """The texts all of whose names have a UID; the others get their verdict."""
        left = []
        for text in texts:
            error = next((uid for uid in found(text) if isinstance(uid, Exception)), None)
            if error is None:
                left.append(text)
            elif isinstance(error, BadLine):  # by the permit
                verdicts[text] = error
            elif isinstance(error, NoSuchName):
                verdicts[text] = BadLine(UNKNOWN_NAME, f"unknown metric: {error}")
            else:
                reason = UIDS_EXHAUSTED if isinstance(error, UidsExhausted) else ILLEGAL_ARGUMENT
                verdicts[text] = BadLine(reason, f"illegal argument: {error}")
        return left

    def _parts(self, metric: bytes, pairs: bytes) -> KeyParts:
        salt = salt_of(metric, pairs, self._layout.salt_width, self._layout.salt_buckets)
        return KeyParts(salt + metric, pairs)


def _uid(found: Found) -> bytes:
    assert isinstance(found, bytes)  # the others were sifted out
    return found

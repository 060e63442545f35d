"""Which series of a metric a plan wants: told by the tag pairs in their row keys, and, where a filter wants a name, by
the names of the tag values met. Each series is judged once, each name looked up once."""

from collections.abc import Iterable, Sequence

import trio

from tsd.codec.rowkey import Layout
from tsd.codec.uid import Kind
from tsd.query.plan import Condition, Plan, literal_product
from tsd.uids import Uids

UNWANTED = -1
TURN_NAMES = 16  # that are looked at, before others get their turn


class Selection:
    """The series met so far. `numbers` has all that were judged, by their joined pairs: UNWANTED, or counted from 0."""

    def __init__(self, plan: Plan, layout: Layout, uids: Uids) -> None:
        self._plan = plan
        self._layout = layout
        self._uids = uids
        self._listed = None if plan.pairs is None else frozenset(plan.pairs)
        self._product = literal_product(plan.conditions) if plan.fuzzy else {}
        self._named = [one for one in plan.conditions if any(not test.passes_all for test in one.matchers)]
        self._verdicts: dict[Condition, dict[bytes, bool]] = {one: {} for one in self._named}
        self.numbers: dict[bytes, int] = {}
        self.wanted: list[bytes] = []  # by number
        self.nameless: dict[bytes, None] = {}  # UIDs of tag values that have no name
        self.malformed = 0  # keys that fit no series
        self.resolved = 0  # names looked up

    @property
    def is_choosy(self) -> bool:
        """Whether some names do not pass."""
        return bool(self._named)

    async def meet(self, pairs: Iterable[bytes]) -> None:
        """Judge series, where that was not done before. Raises StoreError."""
        new = [one for one in pairs if one not in self.numbers]
        if not new:
            return
        candidates = []
        for one in new:
            self.numbers[one] = UNWANTED
            tags = self._tags(one)
            if tags is not None and self._may_be(one, tags):
                candidates.append((one, tags))
        for condition in self._named:
            verdicts = await self._judge(
                condition, [tags[condition.tagk] for _, tags in candidates if condition.tagk in tags]
            )
            candidates = [
                (one, tags) for one, tags in candidates if condition.tagk not in tags or verdicts[tags[condition.tagk]]
            ]
        for one, _ in candidates:
            self.numbers[one] = len(self.wanted)
            self.wanted.append(one)

    def _tags(self, pairs: bytes) -> dict[bytes, bytes] | None:
        """The tags of joined pairs; None, and counted, where they are none."""
        width, tagk = self._layout.widths.pair, self._layout.widths.tagk
        if len(pairs) % width:
            self.malformed += 1
            return None
        return {pairs[at : at + tagk]: pairs[at + tagk : at + width] for at in range(0, len(pairs), width)}

    def _may_be(self, pairs: bytes, tags: dict[bytes, bytes]) -> bool:
        """Whether a series passes all that UIDs can tell."""
        if self._listed is not None and pairs not in self._listed:
            return False
        for one in self._plan.conditions:
            value = tags.get(one.tagk)
            if value is None:
                if one.required:
                    return False
            elif one.absent or (one.literals is not None and value not in one.literals):
                return False
        if self._plan.explicit and len(tags) != sum(not one.absent for one in self._plan.conditions):
            return False
        return not self._product or sum(tags[tagk] != lowest for tagk, lowest in self._product.items()) < 2

    async def _judge(self, condition: Condition, values: Sequence[bytes]) -> dict[bytes, bool]:
        """Whether the names of tag values pass, by their UIDs."""
        verdicts = self._verdicts[condition]
        unknown = [uid for uid in dict.fromkeys(values) if uid not in verdicts]
        if unknown:
            names = await self._uids.names(Kind.TAGV, unknown)
            self.resolved += len(unknown)
            for place, uid in enumerate(unknown):
                if place % TURN_NAMES == 0:  # a pattern may take its time
                    await trio.lowlevel.checkpoint()
                name = names[uid]
                if isinstance(name, bytes):
                    text = name.decode("latin-1")
                    verdicts[uid] = all(test.matches(text) for test in condition.matchers)
                else:
                    self.nameless[uid] = None
                    verdicts[uid] = False
        return verdicts


def by_key(pairs: Sequence[bytes], salts: Sequence[bytes]) -> list[int]:
    """The places of series in the order of their row keys, in which OpenTSDB adds them up: that of the salt, then of
    the tag pairs.

    >>> by_key([b"b", b"a", b"c"], [b"", b"", b""])
    [1, 0, 2]
    """
    return sorted(range(len(pairs)), key=lambda place: (salts[place], pairs[place]))

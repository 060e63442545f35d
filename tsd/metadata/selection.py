"""`metric{tagk=tagv,…}` → which series it means, first by names, then by UIDs (query.md §17)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.uid import Kind
from tsd.codec.words import encode_name
from tsd.errors import BadLine, NoSuchName, TsdError
from tsd.uids import Uids

ANY = ("", "*")


class BadSelection(TsdError):
    """A text that selects nothing."""


class Selection(NamedTuple):
    """Series by names; what is empty or `*` stands for every name. Of pairs with one tag name a series has one of the
    values; of all names it has a tag."""

    metric: str
    tags: Sequence[tuple[str, str]]


class Wanted(NamedTuple):
    """Series by UIDs."""

    metric: bytes | None  # None: every metric
    values: Mapping[bytes | None, frozenset[bytes] | None]  # by tagk; None as tagk: any has one of them

    def fixed_pairs(self) -> list[bytes]:
        """The tag pairs, as keys hold them, that every one of them has."""
        return [
            tagk + next(iter(tagvs))
            for tagk, tagvs in self.values.items()
            if tagk is not None and tagvs is not None and len(tagvs) == 1
        ]

    def takes(self, pairs: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a series with these pairs (tagk, tagv) is one of them."""
        tags = dict(pairs)
        for tagk, tagvs in self.values.items():
            if tagk is None:
                if tagvs is not None and tagvs.isdisjoint(tags.values()):
                    return False
            elif tagk not in tags or (tagvs is not None and tags[tagk] not in tagvs):
                return False
        return True


def parse_selection(text: str, *, strict: bool = False) -> Selection:
    """What a text selects; raises BadSelection with OpenTSDB's words. With `strict` a tag needs both its sides.

    >>> parse_selection("sys.cpu{host=*,=web}")
    Selection(metric='sys.cpu', tags=[('host', '*'), ('', 'web')])
    """
    metric, brace, rest = text.partition("{")
    if not brace:
        if not metric:
            raise BadSelection("Missing metric and tags: " + text)
        return Selection(metric, [])
    if not rest.endswith("}"):
        raise BadSelection(f"Missing '}}' at the end of: {text}")
    words = [word for word in rest[:-1].split(",") if word] if rest != "}" else []
    if not words and not metric:
        raise BadSelection(f"Missing metric and tags: {text}")
    return Selection(metric, [_pair(word, strict) for word in words])


def _pair(word: str, strict: bool) -> tuple[str, str]:
    tagk, equals, tagv = word.partition("=")
    if not equals and not strict:
        raise BadSelection(f"When parsing tag '{word}': Missing tag pair")
    if "=" in tagv or (strict and not (tagk and tagv)):
        raise BadSelection(f"When parsing tag '{word}': invalid tag: {word}")
    if tagk in ANY and tagv in ANY and not strict:
        raise BadSelection(f"When parsing tag '{word}': Missing tag pair")
    return tagk, tagv


async def resolve(uids: Uids, selection: Selection, *, literal: bool = False) -> Wanted:
    """The UIDs that a selection means; raises NoSuchName, StoreError. With `literal` a `*` is a name like others."""
    any_name = () if literal else ANY
    metric = None
    if selection.metric not in (*any_name, ""):
        metric = (await _found(uids, Kind.METRIC, [selection.metric]))[selection.metric]
    tagks = await _found(uids, Kind.TAGK, [tagk for tagk, _ in selection.tags if tagk not in any_name])
    tagvs = await _found(uids, Kind.TAGV, [tagv for _, tagv in selection.tags if tagv not in any_name])
    values: dict[bytes | None, frozenset[bytes] | None] = {}
    for tagk, tagv in selection.tags:
        key = tagks.get(tagk)
        before = values.get(key, frozenset())
        value = tagvs.get(tagv)
        values[key] = None if value is None or before is None else before | {value}
    return Wanted(metric, values)


async def _found(uids: Uids, kind: Kind, names: Sequence[str]) -> dict[str, bytes]:
    raw: dict[str, bytes] = {}
    for name in names:
        try:
            raw[name] = encode_name(name)
        except BadLine as error:
            raise NoSuchName(f"No such name for '{kind.value}': '{name}'") from error
    there = await uids.find(kind, raw.values())
    found: dict[str, bytes] = {}
    for name, as_bytes in raw.items():
        uid = there[as_bytes]
        if isinstance(uid, TsdError):
            raise uid
        found[name] = uid
    return found

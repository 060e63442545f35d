"""Random sub queries of all kinds, as OpenTSDB's clients write them, and their answers by a slow reference."""

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.query_reference import reference
from tests.query_vectors import QueryRequest, Value, read_rate
from tsd.codec.opentsdb.rowkey import salt_of
from tsd.codec.putline import HOUR_S
from tsd.query.model import Downsample
from tsd.query.parse.times import read_downsample
from tsd.query.plan import scan_range
from tsd.tables.reading import ScanRange

Tags = tuple[tuple[str, str], ...]  # by key
HOSTS = [f"h{number:03d}" for number in range(400)]
# Names in the order of their UIDs.
SALTS = 20
KEYS = ["cpu", "dc", "host"]
VALUES = [*"01xyz", *HOSTS]
METRICS = ["days", "fast", "few", "many", "mid"]
KEYS_OF = {
    "days": ["dc", "host"], "fast": ["host"], "few": ["dc", "host"], "many": ["dc", "host"], "mid": ["cpu", "host"]
}  # fmt: skip
AGGREGATORS = (
    "sum sum sum avg min max count zimsum mimmax mimmin dev median first last p99 p50 none diff pfsum squareSum ep75r3"
).split()
FUNCTIONS = "sum sum avg avg min max count dev median first last p99 p95 zimsum mimmin mimmax diff squareSum".split()
EXACT = "sum count min max avg avg zimsum mimmin mimmax".split()  # which rollups can answer
FILLS = ["", "", "", "-nan", "-zero", "-null", "-none"]
LONG, LONG_WHOLE = "10m 30m 1h 2h 6h 1d 2d 7m 90m 0all 1w".split(), "1h 1h 2h 3h 4h 6h 12h 1d 1d 2d 1w 7h".split()
SHORT = "10s 30s 1m 1m 5m 10m 7m 1h 2h 0all 500ms 15m".split()
RATES = ["rate", "rate", "rate{counter,1000}", "rate{dropcounter}", "rate{counter,1000,3}", "rate{counter}"]
ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]
EXPRESSIONS = {
    "host": [
        ("wildcard", "*"), ("literal_or", "h002"), ("literal_or", "h001|h003"), ("wildcard", "h00*"),
        ("regexp", "h00[1-4]"), ("not_literal_or", "h001"), ("iwildcard", "h01*"), ("iliteral_or", "h004"),
    ],
    "dc": [("wildcard", "*"), ("literal_or", "x"), ("literal_or", "x|y"), ("not_literal_or", "x"), ("regexp", "[xz]")],
    "cpu": [("wildcard", "*"), ("literal_or", "0"), ("not_iliteral_or", "1")],
}  # fmt: skip


class Series(NamedTuple):
    """One series."""

    metric: str
    tags: Tags
    uids: tuple[int, ...]  # of the metric and each tag, in the order of keys' UIDs
    salt_width: int  # of row keys

    @classmethod
    def new(cls, metric: str, salt_width: int = 0, **tags: str) -> "Series":
        """Return the series of names that have not changed."""
        pairs = sorted((KEYS.index(key) + 1, VALUES.index(value) + 1) for key, value in tags.items())
        return cls(
            metric, tuple(sorted(tags.items())), (METRICS.index(metric) + 1, *itertools.chain(*pairs)), salt_width
        )

    def renamed(self, kind: str, old: str, new: str) -> "Series":
        """Return it with another name of a UID."""
        if kind == "metric":
            return self._replace(metric=new) if self.metric == old else self
        at = 0 if kind == "tagk" else 1
        pairs = [
            tuple(new if (each, name) == (at, old) else name for each, name in enumerate(pair)) for pair in self.tags
        ]
        return self._replace(tags=tuple(sorted(pairs)))

    @property
    def family(self) -> str:
        """The first name of the metric."""
        return METRICS[self.uids[0] - 1]

    @property
    def tsuid(self) -> str:
        """The UIDs as text."""
        return "".join(f"{uid:06X}" for uid in self.uids)

    @property
    def order(self) -> bytes:
        """By which OpenTSDB sorts series."""
        uids = bytes.fromhex(self.tsuid)
        return salt_of(uids[:3], uids[3:], self.salt_width, SALTS) + uids


Stored = Mapping[Series, Mapping[int, Value]]  # values by times in ms


class Filter(NamedTuple):
    """A filter of one tag."""

    key: str
    kind: str
    text: str
    groups: bool

    def passes(self, tags: Mapping[str, str]) -> bool:
        """Return whether a series passes."""
        value = tags.get(self.key)
        if value is None:
            return False
        if self.kind.endswith("literal_or"):
            return (value in self.text.split("|")) is not self.kind.startswith("not")
        if self.kind.endswith("wildcard"):
            return re.fullmatch(self.text.replace("*", ".*"), value) is not None
        return re.search(self.text, value) is not None


class Group(NamedTuple):
    """What is answered of a group, apart from its points."""

    tags: Tags
    aggregated: tuple[str, ...]
    tsuids: tuple[str, ...]

    @classmethod
    def of(cls, members: Sequence[Series]) -> "Group":
        """Return that of some series."""
        values: dict[str, set[str]] = {}
        for series in members:
            for key, value in series.tags:
                values.setdefault(key, set()).add(value)
        shared = tuple(sorted((key, min(own)) for key, own in values.items() if len(own) == 1))
        aggregated = tuple(sorted(key for key, own in values.items() if len(own) > 1))
        return cls(shared, aggregated, tuple(sorted(series.tsuid for series in members)))


Answer = dict[Group, dict[int, Value]]


@dataclass(frozen=True)
class Question:
    """A sub query."""

    metric: str
    aggregator: str
    downsample: str = ""
    rate: str = ""
    filters: tuple[Filter, ...] = ()
    explicit: bool = False
    tsuids: tuple[str, ...] = ()
    usage: str = ""  # of rollups
    zone: str = ""  # of a downsampler by the calendar

    def uri(self) -> str:
        """Return the text of an `m` or `tsuid`."""
        options = [self.downsample, self.rate, "explicit_tags" if self.explicit else ""]
        parts = [self.aggregator, *filter(None, options)]
        if self.tsuids:
            return ":".join([*parts, ",".join(self.tsuids)])
        lists = [
            ",".join(f"{one.key}={one.kind}({one.text})" for one in self.filters if one.groups is grouping)
            for grouping in (True, False)
        ]
        return ":".join([*parts, self.metric + (f"{{{lists[0]}}}{{{lists[1]}}}" if lists[1] else f"{{{lists[0]}}}")])

    def body(self) -> dict[str, Any]:
        """Return the member of a body's `queries`."""
        found: dict[str, Any] = {"aggregator": self.aggregator, "explicitTags": self.explicit}
        found |= {"tsuids": list(self.tsuids)} if self.tsuids else {"metric": self.metric}
        if self.downsample:
            found["downsample"] = self.downsample
        if self.rate:
            options = read_rate(self.rate)
            found["rate"] = True
            found["rateOptions"] = {
                "counter": options.counter, "counterMax": options.counter_max, "resetValue": options.reset_value,
                "dropResets": options.drop_resets,
            }  # fmt: skip
        found["filters"] = [
            {"type": one.kind, "tagk": one.key, "filter": one.text, "groupBy": one.groups} for one in self.filters
        ]
        return found | ({"rollupUsage": self.usage} if self.usage else {})

    def spec(self) -> Downsample | None:
        """Return the downsampler."""
        if not self.downsample:
            return None
        return read_downsample(self.downsample, zone=self.zone or "UTC", use_calendar=bool(self.zone))

    @property
    def is_exact(self) -> bool:
        """Whether series have no tags but those of the filters. The hour after the range is then read, too."""
        return self.explicit and bool(self.filters)

    def scan(self, span_ms: tuple[int, int]) -> ScanRange:
        """Return the hours that are read."""
        start_s, stop_s = scan_range(*span_ms, self.spec())
        return ScanRange(start_s, stop_s + HOUR_S * self.is_exact)

    def chosen(self, series: Iterable[Series]) -> list[Series]:
        """Return the series that pass, in order."""
        return sorted(filter(self._passes, series), key=lambda one: one.order)

    def _passes(self, series: Series) -> bool:
        if self.tsuids:
            return series.tsuid in self.tsuids
        tags = dict(series.tags)
        is_exact = not self.is_exact or tags.keys() == {one.key for one in self.filters}
        return series.metric == self.metric and is_exact and all(one.passes(tags) for one in self.filters)

    def answer(self, stored: Stored, span_ms: tuple[int, int]) -> Answer:
        """Return the answer of the reference."""
        scan = self.scan(span_ms)
        rate = read_rate(self.rate) if self.rate else None
        request = QueryRequest(self.metric, self.aggregator, *span_ms, self.spec(), rate, {}, {}, in_ms=True)
        read = {
            series: own
            for series in self.chosen(stored)
            if (own := {at: value for at, value in stored[series].items() if scan.start_ms <= at < scan.stop_ms})
        }
        groups: dict[object, list[Series]] = {}
        keys = sorted({one.key for one in self.filters if one.groups})
        for series in read:
            tags = dict(series.tags)
            group = series if self.aggregator == "none" else tuple(tags[key] for key in keys)
            groups.setdefault(group, []).append(series)
        return {
            Group.of(own): reference([read[series] for series in own], request, reads_beyond=self.is_exact)
            for own in groups.values()
        }

    def is_like(self, other: "Question") -> bool:
        """Return whether OpenTSDB takes both for the same, as it does not compare groups."""
        return all(
            getattr(self, name) == getattr(other, name) for name in ("metric", "aggregator", "downsample", "rate")
        ) and {one[:3] for one in self.filters} == {one[:3] for one in other.filters}


class Names:
    """The names that UIDs have now, by kind and in the order of UIDs. Others may have them later."""

    def __init__(self) -> None:
        self.now = {"metric": list(METRICS), "tagk": list(KEYS), "tagv": list(VALUES)}
        self._freed: dict[str, list[str]] = {kind: [] for kind in self.now}

    def rename(self, kind: str, old: str, dice: random.Random) -> str:
        """Rename a UID to a former name of any UID or to a new one, and return that."""
        now, freed = self.now[kind], self._freed[kind]
        longer = next(name for more in range(1, 99) if (name := old + more * "R") not in [*now, *freed])
        new = dice.choice(freed) if freed and dice.random() < 0.6 else longer
        now[now.index(old)] = new
        self._freed[kind] = [name for name in [*freed, old] if name != new]
        return new

    def spoken(self, one: "Question") -> "Question":
        """Return a question that was made of first names with the present names of metric and keys."""
        keys = dict(zip(KEYS, self.now["tagk"], strict=True))
        filters = tuple(each._replace(key=keys[each.key]) for each in one.filters)
        return replace(one, metric=self.now["metric"][METRICS.index(one.metric)], filters=filters)

    def lack(self, one: "Question") -> bool:
        """Return whether a name of a question does not exist, which is an error. Others than literals need not."""
        if one.tsuids:
            return False
        values = {name for each in one.filters if each.kind == "literal_or" for name in each.text.split("|")}
        return (
            one.metric not in self.now["metric"]
            or not {each.key for each in one.filters} <= {*self.now["tagk"]}
            or not values <= {*self.now["tagv"]}
        )


def question(dice: random.Random, series: Iterable[Series], *, for_rollups: bool) -> Question:
    """Return a sub query; `for_rollups`: mostly one that rollups can answer."""
    metric = dice.choice(["days"] * (9 if for_rollups else 2) + METRICS)
    downsample = rate = zone = usage = ""
    if for_rollups and dice.random() < 0.8:
        downsample = f"{dice.choice(LONG_WHOLE)}-{dice.choice(EXACT)}{dice.choice(FILLS)}"
    elif dice.random() < 0.75:
        interval = dice.choice(LONG if metric == "days" else SHORT if metric in ("fast", "few") else SHORT[2:9])
        downsample = f"{interval}-{dice.choice(FUNCTIONS)}{dice.choice(FILLS)}"
        zone = dice.choice(ZONES) if dice.random() < 0.2 and not interval.endswith(("all", "ms")) else ""
    if dice.random() < 0.25:
        rate = dice.choice(RATES)
    if dice.random() < 0.1:
        usage = "ROLLUP_RAW"
    plain = Question(metric, dice.choice(AGGREGATORS), downsample, rate, usage=usage, zone=zone)
    kind = dice.random()
    if kind < 0.08:
        own = sorted(one.tsuid for one in series if one.family == metric)
        tsuids = tuple(dice.sample(own, min(len(own), dice.choice([1, 2, 5]))))
        return Question(metric, plain.aggregator, downsample, rate, tsuids=tsuids, usage=usage, zone=zone)
    if kind > 0.8:
        return plain
    keys = dice.sample(KEYS_OF[metric], dice.choice([1, 1, len(KEYS_OF[metric])]))
    filters = tuple(Filter(key, *dice.choice(EXPRESSIONS[key]), dice.random() < 0.5) for key in keys)
    # With several literals of two keys OpenTSDB loses series.
    explicit = dice.random() < 0.1 and sum("|" in one.text for one in filters) < len(KEYS) - 1
    return Question(metric, plain.aggregator, downsample, rate, filters, explicit, usage=usage, zone=zone)


def differing(found: Answer, expected: Answer) -> list[object]:
    """Return where two answers differ, other than by the order of additions."""
    differences: list[object] = [("group", group, group in found) for group in found.keys() ^ expected.keys()]
    for group in found.keys() & expected.keys():
        ours, theirs = found[group], expected[group]
        differences += [
            (group[:2], at, ours.get(at), theirs.get(at))
            for at in sorted(ours.keys() | theirs.keys())
            if not is_close(ours.get(at), theirs.get(at))
        ]
    return differences


def is_close(one: Value | None, other: Value | None) -> bool:
    """Return whether two values are equal but for rounding."""
    if one is None or other is None:
        return False
    both = float(one), float(other)
    return all(map(math.isnan, both)) or math.isclose(*both, rel_tol=1e-9, abs_tol=1e-7)

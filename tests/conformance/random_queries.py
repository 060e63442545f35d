"""Points and requests drawn by lot, to be put to a real OpenTSDB and to tsd on the same tables.

The points are awkward where real ones are: uneven times, holes, integers beside doubles, counters that wrap, several
points a second, series that start late or have other keys, hours that a clock change lengthens. Equal seeds draw the
same.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

BASE_S = 1356998400  # an hour; the points lie in the four hours from here
SPAN_S = 4 * 3600
DST_S = 1364680800  # 2013-03-30 22:00 UTC: Berlin's clocks go forward three hours later
DAYS_S = 12 * 3600

AGGREGATORS = """sum min max avg dev count first last diff mult median none zimsum mimmin mimmax pfsum squareSum p50 p75
p90 p95 p99 p999 ep50r3 ep75r3 ep90r3 ep95r3 ep99r3 ep999r3 ep50r7 ep75r7 ep90r7 ep95r7 ep99r7 ep999r7""".split()
USUAL = ["sum", "avg", "max", "min", "count", "none", "dev", "first", "last", "p95"]
INTERVALS = "1s 7s 10s 30s 60s 1m 90s 5m 10m 15m 1h 2h 90m 1500ms 1d 1n 2w".split()
CALENDAR = "1d 1w 1n 6h 2h 90m 30m 12h 3d".split()
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
FILLS = ["", "", "-none", "-nan", "-null", "-zero"]
HOSTS, DCS = ["web01", "web02", "Web03", "db01", "DB02", "xwebx"], ["fra", "ams", "lax"]


class Asking(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any = None


def lines(seed: int) -> Iterator[bytes]:
    """Put lines, in an order that gives every name its UID."""
    chance = random.Random(seed)
    for metric, span_s, start_s in (
        ("dq.int", SPAN_S, BASE_S), ("dq.float", SPAN_S, BASE_S), ("dq.mixed", SPAN_S, BASE_S),
        ("dq.counter", SPAN_S, BASE_S), ("dq.even", SPAN_S, BASE_S), ("dq.ms", 600, BASE_S),
        ("dq.sparse", SPAN_S, BASE_S), ("dq.clock", DAYS_S, DST_S),
    ):  # fmt: skip
        for number, tags in enumerate(_tag_sets(chance)):
            for time, value in _points(metric, chance, start_s, span_s, number):
                yield f"put {metric} {time} {value} {tags}\n".encode()


def _tag_sets(chance: random.Random) -> list[str]:
    sets = [f"host={host} dc={chance.choice(DCS)}" for host in HOSTS]
    return [*sets, "host=web01 dc=fra cpu=0", "dc=lax", "cpu=1 host=db01"]


def _points(metric: str, chance: random.Random, start_s: int, span_s: int, number: int) -> Iterator[tuple[int, str]]:
    at = start_s + chance.randrange(0, span_s // 3) if number % 3 == 2 else start_s
    end = at + chance.randrange(span_s // 2, span_s) if number % 4 == 3 else start_s + span_s
    count = chance.randrange(10**6)
    if metric == "dq.ms":
        milliseconds = at * 1000
        while milliseconds < min(end, start_s + span_s) * 1000:
            yield milliseconds, f"{chance.uniform(-5, 5):.3f}" if number % 2 else str(chance.randrange(100))
            milliseconds += chance.choice([250, 333, 1000, 4001])
        return
    while at < min(end, start_s + span_s):
        match metric:
            case "dq.int" | "dq.clock":
                value = str(chance.randrange(-1000, 1000))
            case "dq.float":
                value = repr(chance.choice([chance.uniform(-1, 1), chance.uniform(0, 1e9), round(chance.random(), 2)]))
            case "dq.mixed":
                value = chance.choice([str(chance.randrange(10**12)), f"{chance.uniform(0, 100):.2f}"])
            case "dq.counter":
                count = chance.randrange(100) if chance.random() < 0.03 else (count + chance.randrange(5000)) % 65536
                value = str(count)
            case "dq.even":
                value = f"{chance.uniform(0, 100):.2f}"
            case _:
                value = str(chance.randrange(10)) if chance.random() < 0.5 else f"{chance.gauss(0, 3):.4f}"
        yield at, value
        match metric:
            case "dq.even":
                at += 30
            case "dq.sparse":
                at += chance.randrange(200, 4000)
            case "dq.clock":
                at += chance.choice([600, 900, 1800])
            case _:
                at += chance.choice([10, 15, 30, 60, 61, 119, 600 if chance.random() < 0.1 else 45])


def warming() -> list[Asking]:
    """Requests that have OpenTSDB look up every name once: until it knows them, its filters may miss series."""
    metrics = "int float mixed counter even ms sparse clock".split()
    path = "/api/query?start=1356998400&end=1365000000&show_tsuids&m=none:dq."
    return [Asking("GET", f"{path}{metric}") for metric in metrics] * 2


def asking(seed: int) -> Asking:
    """The request of a number."""
    chance = random.Random(seed)
    subs = [_sub(chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    clock = subs[0]["metric"] == "dq.clock"
    low, span = (DST_S, DAYS_S) if clock else (BASE_S, SPAN_S)
    start = low + chance.choice([0, 0, 3600, chance.randrange(-4000, span)])
    end = start + chance.choice([3600, 7200, 600, span, chance.randrange(1, span)])
    body: dict[str, Any] = {"start": start, "end": end, "queries": subs}
    if chance.random() < 0.2:
        body["start"], body["end"] = start * 1000 + chance.randrange(1000), end * 1000 + chance.randrange(1000)
    for flag, share in (("msResolution", 0.3), ("showTSUIDs", 0.3), ("showQuery", 0.15), ("noAnnotations", 0.05)):
        if chance.random() < share:
            body[flag] = True
    if clock or chance.random() < 0.1:
        body["timezone"] = chance.choice(ZONES)
        body["useCalendar"] = chance.random() < 0.7
    path = "/api/query?arrays" if chance.random() < 0.3 else "/api/query"
    if chance.random() < 0.4 and not body.get("timezone"):
        return _as_uri(path, body)
    return Asking("POST", path, body)


def notes(tsuids: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Annotations, of series and global: in seconds and in milliseconds, some that last."""
    chance = random.Random(0)
    drawn = []
    for number in range(24):
        at = BASE_S + chance.randrange(SPAN_S)
        note: dict[str, Any] = {"description": f"note {number}"}
        note["startTime"] = chance.choice([at, at * 1000 + chance.randrange(1000)])
        if chance.random() < 0.6:
            note["tsuid"] = chance.choice(tsuids[chance.choice(["dq.int", "dq.float", "dq.sparse"])])
        if chance.random() < 0.5:
            note["endTime"] = note["startTime"] + chance.randrange(1, 4000)
        drawn.append(note)
    return drawn


def odd_asking(seed: int, tsuids: Mapping[str, Sequence[str]]) -> Asking:
    """A request of the kinds that are rarer: for single series, with explicit tags or several filters on one key, of
    milliseconds, or that ends where an hour does. `tsuids` are those of each metric."""
    chance = random.Random(f"odd {seed}")
    sub = _sub(chance)
    if sub["metric"] == "dq.clock":
        sub |= {"metric": "dq.sparse"}
        sub.pop("downsample", None)
    start = BASE_S + 3600 * chance.randrange(-1, 4) + chance.choice([0, 0, 1, -1])
    body = {"start": start, "end": start + 3600 * chance.randrange(1, 4) + chance.choice([0, 0, 1, -1])}
    match chance.choice(["tsuids", "explicit", "one key", "milliseconds"]):
        case "tsuids":
            sub |= {"tsuids": chance.choices(tsuids[sub.pop("metric")], k=chance.randrange(1, 6))}
            sub.pop("explicitTags", None)
        case "explicit":
            sub |= {"explicitTags": True, "filters": [_any_of(chance, key) for key in ("cpu", "dc", "host")]}
            sub["filters"] = chance.sample(sub["filters"], chance.choice([1, 2, 2, 3]))
        case "one key":
            sub["filters"] = [_filter(chance, chance.choice(["host", "dc"])) for _ in range(chance.randrange(2, 5))]
            sub.pop("explicitTags", None)
        case _:
            interval = chance.choice(["100ms", "333ms", "1s", "1500ms", "7s"])
            sub |= {"metric": "dq.ms", "downsample": f"{interval}-{chance.choice(USUAL[:5])}{chance.choice(FILLS)}"}
            start_ms = BASE_S * 1000 + chance.randrange(600_000)
            body = {"start": start_ms, "end": start_ms + chance.randrange(1, 400_000)}
    flags = {"msResolution": 0.4, "showTSUIDs": 0.3, "showQuery": 0.3, "globalAnnotations": 0.4}
    shown = {flag: True for flag, share in flags.items() if chance.random() < share}
    return Asking("POST", "/api/query", body | shown | {"queries": [sub]})


def _any_of(chance: random.Random, key: str) -> dict[str, Any]:
    """A filter that is likely to list several values of a key."""
    pool = _values(key)
    if chance.random() < 0.3:
        return _filter(chance, key)
    some = "|".join(chance.sample(pool, chance.randrange(1, len(pool) + 1)))
    return {"type": "literal_or", "tagk": key, "filter": some, "groupBy": chance.random() < 0.6}


def _values(key: str) -> list[str]:
    return {"host": HOSTS, "dc": DCS, "cpu": ["0", "1"]}[key]


def _sub(chance: random.Random) -> dict[str, Any]:
    metric = chance.choice("int float mixed counter counter even even ms sparse clock".split())
    pool = USUAL if chance.random() < 0.6 else AGGREGATORS
    sub: dict[str, Any] = {"metric": f"dq.{metric}", "aggregator": chance.choice(pool)}
    if chance.random() < 0.65:
        sub["downsample"] = _downsample(chance, clock=metric == "clock")
    if chance.random() < (0.7 if metric == "counter" else 0.2):
        sub["rate"] = True
        if chance.random() < 0.6:
            sub["rateOptions"] = {
                "counter": chance.random() < 0.7,
                "counterMax": chance.choice([65535, 65536, 2**63 - 1]),
                "resetValue": chance.choice([0, 100, 1]),
                "dropResets": chance.random() < 0.3,
            }
    keys = chance.sample(["host", "dc", "cpu"], chance.choice([0, 1, 1, 2, 3]))
    sub["filters"] = [_filter(chance, key) for key in keys]
    if chance.random() < 0.1 and keys:
        sub["filters"].append(_filter(chance, chance.choice(keys)))
    if chance.random() < 0.1 and not _lists(sub["filters"]) > 1:
        sub["explicitTags"] = True
    return sub


def _lists(filters: list[dict[str, Any]]) -> int:
    """Filters of several literals: two of them beside explicit tags make OpenTSDB lose series by chance."""
    return sum("|" in f["filter"] for f in filters)


def _downsample(chance: random.Random, *, clock: bool) -> str:
    function = chance.choice([name for name in (USUAL if chance.random() < 0.6 else AGGREGATORS) if name != "none"])
    if chance.random() < 0.06:
        return f"0all-{function}{chance.choice(FILLS)}"
    interval = chance.choice(CALENDAR) + chance.choice(["c", ""]) if clock else chance.choice(INTERVALS)
    return f"{interval}-{function}{chance.choice(FILLS)}"


def _filter(chance: random.Random, key: str) -> dict[str, Any]:
    some = "|".join(chance.sample(_values(key), chance.randrange(1, 3)))
    kind, expression = chance.choice(
        [
            ("literal_or", some), ("iliteral_or", some.upper()), ("not_literal_or", some), ("not_iliteral_or", some),
            ("wildcard", "*"), ("wildcard", chance.choice(["w*", "*1", "*eb*", "x*x", "W*3"])),
            ("iwildcard", chance.choice(["W*", "*02", "*E*", "d*0*"])),
            ("regexp", chance.choice(["^web", "b0[12]$", "(?i)WEB", ".*", "a|l", "[A-Z]"])), ("wildcard", "*"),
        ]
    )  # fmt: skip
    return {"type": kind, "tagk": key, "filter": expression, "groupBy": chance.random() < 0.6}


def _as_uri(path: str, body: dict[str, Any]) -> Asking:
    words = [f"start={body['start']}", f"end={body['end']}"]
    flags = {"msResolution": "ms", "showTSUIDs": "show_tsuids", "showQuery": "show_query"}
    words += [name for flag, name in flags.items() if body.get(flag)]
    if body.get("noAnnotations"):
        words.append("no_annotations")
    for sub in body["queries"]:
        words.append("m=" + quote(_as_m(sub), safe=":{}=,|*()"))
    return Asking("GET", path + ("&" if "?" in path else "?") + "&".join(words))


def _as_m(sub: dict[str, Any]) -> str:
    parts = [sub["aggregator"]]
    if sub.get("rate"):
        options = sub.get("rateOptions", {})
        rate = "rate"
        if options.get("counter"):
            kind = "dropcounter" if options["dropResets"] else "counter"
            rate = f"rate{{{kind},{options['counterMax']},{options['resetValue']}}}"
        parts.append(rate)
    if "downsample" in sub:
        parts.append(sub["downsample"])
    if sub.get("explicitTags"):
        parts.append("explicit_tags")

    def braces(*, group_by: bool) -> str:
        some = [f for f in sub["filters"] if f["groupBy"] == group_by]
        return "{" + ",".join(f"{f['tagk']}={f['type']}({f['filter']})" for f in some) + "}"

    return ":".join([*parts, sub["metric"] + braces(group_by=True) + braces(group_by=False)])

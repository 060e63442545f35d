"""Random points and requests for a real OpenTSDB and tsd on the same tables.

The points have the irregularities of real ones: uneven times, gaps, integers next to doubles, and counters that wrap.
There are several points per second, series that start late or have other keys, and hours lengthened by a clock change.
A seed always gives the same.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

BASE_S = 1356998400  # start of an hour; the points are in the four hours from here
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


class QueryCase(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any = None


def lines(seed: int) -> Iterator[bytes]:
    """Yield put lines in an order that assigns every name its UID."""
    rng = random.Random(seed)
    for metric, span_s, start_s in (
        ("dq.int", SPAN_S, BASE_S), ("dq.float", SPAN_S, BASE_S), ("dq.mixed", SPAN_S, BASE_S),
        ("dq.counter", SPAN_S, BASE_S), ("dq.even", SPAN_S, BASE_S), ("dq.ms", 600, BASE_S),
        ("dq.sparse", SPAN_S, BASE_S), ("dq.clock", DAYS_S, DST_S),
    ):  # fmt: skip
        for number, tags in enumerate(_tag_sets(rng)):
            for time, value in _points(metric, rng, start_s, span_s, number):
                yield f"put {metric} {time} {value} {tags}\n".encode()


def _tag_sets(rng: random.Random) -> list[str]:
    sets = [f"host={host} dc={rng.choice(DCS)}" for host in HOSTS]
    return [*sets, "host=web01 dc=fra cpu=0", "dc=lax", "cpu=1 host=db01"]


def _points(metric: str, rng: random.Random, start_s: int, span_s: int, number: int) -> Iterator[tuple[int, str]]:
    at = start_s + rng.randrange(0, span_s // 3) if number % 3 == 2 else start_s
    end = at + rng.randrange(span_s // 2, span_s) if number % 4 == 3 else start_s + span_s
    count = rng.randrange(10**6)
    if metric == "dq.ms":
        milliseconds = at * 1000
        while milliseconds < min(end, start_s + span_s) * 1000:
            yield milliseconds, f"{rng.uniform(-5, 5):.3f}" if number % 2 else str(rng.randrange(100))
            milliseconds += rng.choice([250, 333, 1000, 4001])
        return
    while at < min(end, start_s + span_s):
        match metric:
            case "dq.int" | "dq.clock":
                value = str(rng.randrange(-1000, 1000))
            case "dq.float":
                value = repr(rng.choice([rng.uniform(-1, 1), rng.uniform(0, 1e9), round(rng.random(), 2)]))
            case "dq.mixed":
                value = rng.choice([str(rng.randrange(10**12)), f"{rng.uniform(0, 100):.2f}"])
            case "dq.counter":
                count = rng.randrange(100) if rng.random() < 0.03 else (count + rng.randrange(5000)) % 65536
                value = str(count)
            case "dq.even":
                value = f"{rng.uniform(0, 100):.2f}"
            case _:
                value = str(rng.randrange(10)) if rng.random() < 0.5 else f"{rng.gauss(0, 3):.4f}"
        yield at, value
        match metric:
            case "dq.even":
                at += 30
            case "dq.sparse":
                at += rng.randrange(200, 4000)
            case "dq.clock":
                at += rng.choice([600, 900, 1800])
            case _:
                at += rng.choice([10, 15, 30, 60, 61, 119, 600 if rng.random() < 0.1 else 45])


def warming() -> list[QueryCase]:
    """Return requests that make OpenTSDB look up every name once: before that its filters may miss series."""
    metrics = "int float mixed counter even ms sparse clock".split()
    path = "/api/query?start=1356998400&end=1365000000&show_tsuids&m=none:dq."
    return [QueryCase("GET", f"{path}{metric}") for metric in metrics] * 2


def query_case(seed: int) -> QueryCase:
    """Return the request of a seed."""
    rng = random.Random(seed)
    subs = [_sub(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    clock = subs[0]["metric"] == "dq.clock"
    low, span = (DST_S, DAYS_S) if clock else (BASE_S, SPAN_S)
    start = low + rng.choice([0, 0, 3600, rng.randrange(-4000, span)])
    end = start + rng.choice([3600, 7200, 600, span, rng.randrange(1, span)])
    body: dict[str, Any] = {"start": start, "end": end, "queries": subs}
    if rng.random() < 0.2:
        body["start"], body["end"] = start * 1000 + rng.randrange(1000), end * 1000 + rng.randrange(1000)
    for flag, share in (("msResolution", 0.3), ("showTSUIDs", 0.3), ("showQuery", 0.15), ("noAnnotations", 0.05)):
        if rng.random() < share:
            body[flag] = True
    if clock or rng.random() < 0.1:
        body["timezone"] = rng.choice(ZONES)
        body["useCalendar"] = rng.random() < 0.7
    path = "/api/query?arrays" if rng.random() < 0.3 else "/api/query"
    if rng.random() < 0.4 and not body.get("timezone"):
        return _as_uri(path, body)
    return QueryCase("POST", path, body)


def notes(tsuids: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return annotations, of series and global, in seconds and milliseconds, some with an end."""
    rng = random.Random(0)
    drawn = []
    for number in range(24):
        at = BASE_S + rng.randrange(SPAN_S)
        note: dict[str, Any] = {"description": f"note {number}"}
        note["startTime"] = rng.choice([at, at * 1000 + rng.randrange(1000)])
        if rng.random() < 0.6:
            note["tsuid"] = rng.choice(tsuids[rng.choice(["dq.int", "dq.float", "dq.sparse"])])
        if rng.random() < 0.5:
            note["endTime"] = note["startTime"] + rng.randrange(1, 4000)
        drawn.append(note)
    return drawn


def odd_query_case(seed: int, tsuids: Mapping[str, Sequence[str]]) -> QueryCase:
    """Return a request of a rarer kind: for single series, with explicit tags, with several filters on one key, in
    milliseconds, or up to the end of an hour. `tsuids` are those of each metric."""
    rng = random.Random(f"odd {seed}")
    sub = _sub(rng)
    if sub["metric"] == "dq.clock":
        sub |= {"metric": "dq.sparse"}
        sub.pop("downsample", None)
    start = BASE_S + 3600 * rng.randrange(-1, 4) + rng.choice([0, 0, 1, -1])
    body = {"start": start, "end": start + 3600 * rng.randrange(1, 4) + rng.choice([0, 0, 1, -1])}
    match rng.choice(["tsuids", "explicit", "one key", "milliseconds"]):
        case "tsuids":
            sub |= {"tsuids": rng.choices(tsuids[sub.pop("metric")], k=rng.randrange(1, 6))}
            sub.pop("explicitTags", None)
        case "explicit":
            sub |= {"explicitTags": True, "filters": [_any_of(rng, key) for key in ("cpu", "dc", "host")]}
            sub["filters"] = rng.sample(sub["filters"], rng.choice([1, 2, 2, 3]))
        case "one key":
            sub["filters"] = [_filter(rng, rng.choice(["host", "dc"])) for _ in range(rng.randrange(2, 5))]
            sub.pop("explicitTags", None)
        case _:
            interval = rng.choice(["100ms", "333ms", "1s", "1500ms", "7s"])
            sub |= {"metric": "dq.ms", "downsample": f"{interval}-{rng.choice(USUAL[:5])}{rng.choice(FILLS)}"}
            start_ms = BASE_S * 1000 + rng.randrange(600_000)
            body = {"start": start_ms, "end": start_ms + rng.randrange(1, 400_000)}
    flags = {"msResolution": 0.4, "showTSUIDs": 0.3, "showQuery": 0.3, "globalAnnotations": 0.4}
    shown = {flag: True for flag, share in flags.items() if rng.random() < share}
    return QueryCase("POST", "/api/query", body | shown | {"queries": [sub]})


def _any_of(rng: random.Random, key: str) -> dict[str, Any]:
    """Return a filter that probably lists several values of a key."""
    pool = _values(key)
    if rng.random() < 0.3:
        return _filter(rng, key)
    some = "|".join(rng.sample(pool, rng.randrange(1, len(pool) + 1)))
    return {"type": "literal_or", "tagk": key, "filter": some, "groupBy": rng.random() < 0.6}


def _values(key: str) -> list[str]:
    return {"host": HOSTS, "dc": DCS, "cpu": ["0", "1"]}[key]


def _sub(rng: random.Random) -> dict[str, Any]:
    metric = rng.choice("int float mixed counter counter even even ms sparse clock".split())
    pool = USUAL if rng.random() < 0.6 else AGGREGATORS
    sub: dict[str, Any] = {"metric": f"dq.{metric}", "aggregator": rng.choice(pool)}
    if rng.random() < 0.65:
        sub["downsample"] = _downsample(rng, clock=metric == "clock")
    if rng.random() < (0.7 if metric == "counter" else 0.2):
        sub["rate"] = True
        if rng.random() < 0.6:
            sub["rateOptions"] = {
                "counter": rng.random() < 0.7,
                "counterMax": rng.choice([65535, 65536, 2**63 - 1]),
                "resetValue": rng.choice([0, 100, 1]),
                "dropResets": rng.random() < 0.3,
            }
    keys = rng.sample(["host", "dc", "cpu"], rng.choice([0, 1, 1, 2, 3]))
    sub["filters"] = [_filter(rng, key) for key in keys]
    if rng.random() < 0.1 and keys:
        sub["filters"].append(_filter(rng, rng.choice(keys)))
    if rng.random() < 0.1 and not _lists(sub["filters"]) > 1:
        sub["explicitTags"] = True
    return sub


def _lists(filters: list[dict[str, Any]]) -> int:
    """Count filters with several literals: with explicit tags, two of them make OpenTSDB lose series at random."""
    return sum("|" in f["filter"] for f in filters)


def _downsample(rng: random.Random, *, clock: bool) -> str:
    function = rng.choice([name for name in (USUAL if rng.random() < 0.6 else AGGREGATORS) if name != "none"])
    if rng.random() < 0.06:
        return f"0all-{function}{rng.choice(FILLS)}"
    interval = rng.choice(CALENDAR) + rng.choice(["c", ""]) if clock else rng.choice(INTERVALS)
    return f"{interval}-{function}{rng.choice(FILLS)}"


def _filter(rng: random.Random, key: str) -> dict[str, Any]:
    some = "|".join(rng.sample(_values(key), rng.randrange(1, 3)))
    kind, expression = rng.choice(
        [
            ("literal_or", some), ("iliteral_or", some.upper()), ("not_literal_or", some), ("not_iliteral_or", some),
            ("wildcard", "*"), ("wildcard", rng.choice(["w*", "*1", "*eb*", "x*x", "W*3"])),
            ("iwildcard", rng.choice(["W*", "*02", "*E*", "d*0*"])),
            ("regexp", rng.choice(["^web", "b0[12]$", "(?i)WEB", ".*", "a|l", "[A-Z]"])), ("wildcard", "*"),
        ]
    )  # fmt: skip
    return {"type": kind, "tagk": key, "filter": expression, "groupBy": rng.random() < 0.6}


def _as_uri(path: str, body: dict[str, Any]) -> QueryCase:
    words = [f"start={body['start']}", f"end={body['end']}"]
    flags = {"msResolution": "ms", "showTSUIDs": "show_tsuids", "showQuery": "show_query"}
    words += [name for flag, name in flags.items() if body.get(flag)]
    if body.get("noAnnotations"):
        words.append("no_annotations")
    for sub in body["queries"]:
        words.append("m=" + quote(_as_m(sub), safe=":{}=,|*()"))
    return QueryCase("GET", path + ("&" if "?" in path else "?") + "&".join(words))


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

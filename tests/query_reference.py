"""docs/compat/query.md §9 to §12 in plain Python, value by value: slow, and close to its words."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tests.query_vectors import QueryRequest, Value
from tsd.codec.putline import HOUR_MS
from tsd.query import calendar
from tsd.query.model import Calendar, Downsample, Fill, RateOptions
from tsd.query.plan import output_range, scan_range
from tsd.tables.reading import ScanRange

Series = Mapping[int, Value]
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
LARGEST = 1.7976931348623157e308
ZIM = {"zimsum", "squareSum", "count", "first", "last", "none"}


def reference(series: Sequence[Series], query: QueryRequest, *, reads_beyond: bool = False) -> dict[int, Value]:
    """The answer of one group. `reads_beyond`: the hour after the scan range is read, too (§6.4)."""
    bounds = (query.start_ms, query.end_ms)
    scan = scan_range(*bounds, query.downsample)
    read_ms = range(scan.start_ms, scan.stop_ms + HOUR_MS * reads_beyond)
    read: list[Series] = [{t: v for t, v in sorted(one.items()) if t in read_ms} for one in series]
    if query.downsample:
        read = [downsampled(one, query.downsample, bounds, scan) for one in read]
    firsts: list[float | None] = [None] * len(read)
    if query.rate is not None:
        for number, one in enumerate(read):
            firsts[number], read[number] = rated(one, query.rate, scan)
    read = [{t: v for t, v in one.items() if t >= scan.start_ms} for one in read]
    merged = merged_series(read, firsts, query.aggregator, scan, query.rate is not None)
    shown = output_range(*bounds, query.downsample)
    return {time: value for time, value in merged.items() if time in shown}


def downsampled(one: Series, spec: Downsample, bounds: tuple[int, int], scan: ScanRange) -> Series:
    if spec.is_all:
        inside = [v for t, v in one.items() if bounds[0] <= t < bounds[1]]
        return {bounds[0]: of_doubles(spec.function, inside)} if inside else {}
    if spec.calendar:
        start_of, grid = by_calendar(one, spec.calendar, scan)
    else:
        length = spec.interval_ms
        first = -(-scan.start_ms // length) * length
        grid = list(range(scan.start_ms // length * length, scan.stop_ms // length * length, length))

        def start_of(time: int) -> int | None:
            return time // length * length if time >= first else None

    found: dict[int, list[Value]] = {}
    for time, value in one.items():
        start = start_of(time)
        if start is not None:
            found.setdefault(start, []).append(value)
    results = {start: of_doubles(spec.function, values) for start, values in found.items()}
    if spec.fill is Fill.NONE:
        return results
    return {start: results.get(start, 0.0 if spec.fill is Fill.ZERO else math.nan) for start in grid}


def by_calendar(one: Series, spec: Calendar, scan: ScanRange) -> tuple[Callable[[int], int | None], list[int]]:
    base = calendar.base(scan.start_ms, spec)
    first = base if base == scan.start_ms else calendar.after(base, spec)
    stop = calendar.base(scan.stop_ms, spec)
    own = [calendar.base(next(t for t in one if t >= first), spec)] if any(t >= first for t in one) else []
    while own and own[-1] < scan.stop_ms:
        own.append(calendar.after(own[-1], spec))
    grid = [base]
    while (following := calendar.after(grid[-1], spec)) < stop:
        grid.append(following)
    return lambda time: max((start for start in own if start <= time), default=own[0]) if time >= first else None, grid


def rated(one: Series, options: RateOptions, scan: ScanRange) -> tuple[float | None, Series]:
    """The first rate, from what a bucket before the scan was filled with, or a meaningless one; and the others."""
    before: list[tuple[int, Value]] = [(0, 0), *((t, v) for t, v in one.items() if t < scan.start_ms)]
    rates = {}
    for (t0, v0), (t1, v1) in pairwise([before[-1], *((t, v) for t, v in one.items() if t >= scan.start_ms)]):
        whole = isinstance(v0, int) and isinstance(v1, int)
        change = wrap(int(v1) - int(v0)) if whole else float(v1) - float(v0)
        seconds = (t1 - t0) / 1000.0
        if options.counter and change < 0:
            if options.drop_resets:
                continue
            limit = options.counter_max
            change = wrap(wrap(limit - int(v0)) + int(v1)) if whole else float(limit) - float(v0) + float(v1)
            rate = change / seconds
            rates[t1] = 0.0 if options.reset_value > 0 and rate > options.reset_value else rate
        else:
            rates[t1] = change / seconds
    if len(rates) < 2:
        return None, {}
    (_, first), *others = rates.items()
    return first, dict(others)


def merged_series(
    series: Sequence[Series], firsts: Sequence[float | None], aggregator: str, scan: ScanRange, rate: bool
) -> dict[int, Value]:
    """The loop of §11, its words as they stand there."""
    queues = [list(one.items())[::-1] for one in series]
    nxt = [queue.pop() if queue else None for queue in queues]
    cur: list[tuple[int, Value] | None] = [None if first is None else (0, first) for first in firsts]
    found: dict[int, Value] = {}
    while times := [point[0] for point in nxt if point and point[0] <= scan.stop_ms]:
        x = min(times)
        for i, queue in enumerate(queues):
            following = nxt[i]
            if following is None:
                cur[i] = None
            elif following[0] == x:
                cur[i], nxt[i] = following, queue.pop() if queue else None
        present = [point for point in (*cur, *nxt) if point]
        integer = not rate and all(isinstance(value, int) for _, value in present)
        values = [
            point[1] if point[0] == x or rate else between(aggregator, point, nxt[i], x, integer)
            for i, point in enumerate(cur)
            if point
        ]
        found[x] = of_integers(aggregator, values) if integer else of_doubles(aggregator, values)  # type: ignore[arg-type]
    return found


def between(
    aggregator: str, point: tuple[int, Value], following: tuple[int, Value] | None, x: int, integer: bool
) -> Value:
    if aggregator in ZIM:
        return 0 if integer else 0.0
    if aggregator == "mimmin":
        return HIGHEST if integer else LARGEST
    if aggregator == "mimmax":
        return LOWEST if integer else -LARGEST
    if aggregator == "pfsum":
        return point[1]
    assert following
    (x0, y0), (x1, y1) = point, following
    if integer:
        assert isinstance(y0, int)
        assert isinstance(y1, int)
        return wrap(y0 + divide(wrap((x - x0) * wrap(y1 - y0)), x1 - x0))
    return float(y0) + (x - x0) * (float(y1) - float(y0)) / (x1 - x0)


def of_integers(name: str, values: Sequence[int]) -> int:
    """§12's column "on integers"."""
    if name in ("sum", "zimsum", "pfsum", "squareSum", "avg"):
        total = wrap(sum(v * v if name == "squareSum" else v for v in values))
        return divide(total, len(values)) if name == "avg" else total
    simple: dict[str, Callable[[], int]] = {
        "count": lambda: len(values),
        "min": lambda: min(values),
        "mimmin": lambda: min(values),
        "max": lambda: max(values),
        "mimmax": lambda: max(values),
        "diff": lambda: wrap(values[-1] - values[0]),
        "mult": lambda: wrap(math.prod(values)),
        "first": lambda: values[0],
        "none": lambda: values[0],
        "last": lambda: values[-1],
        "median": lambda: sorted(values)[len(values) // 2],
    }
    if name in simple:
        return simple[name]()
    found = (
        deviation([float(v) for v in values]) if name == "dev" else percentile(name, sorted(map(float, values)), True)
    )
    return max(LOWEST, min(HIGHEST, int(found)))


def of_doubles(name: str, given: Sequence[Value]) -> float:
    """§12's columns "on doubles" and "NaN"."""
    everything = [float(v) for v in given]
    values = [v for v in everything if not math.isnan(v)]
    if name in ("first", "none"):
        return everything[0]
    if name == "last":
        return everything[-1]
    if name == "mult":
        product = everything[0]
        for v in everything[1:]:
            product *= v
        return product
    if name == "count":
        return float(len(values))
    if not values or (name == "diff" and math.isnan(everything[-1])):
        return math.nan
    if name in ("sum", "zimsum", "pfsum", "squareSum", "avg"):
        total = 0.0
        for v in values:
            total += v * v if name == "squareSum" else v
        return total / len(values) if name == "avg" else total
    if name == "diff":
        return values[-1] - values[0] if len(values) > 1 else 0.0
    if name in ("min", "mimmin", "max", "mimmax"):
        best = min(values) if name.endswith("min") else max(values)  # of equals Python keeps the first too
        return math.nan if best == (math.inf if name.endswith("min") else -math.inf) else best
    if name == "dev":
        return deviation(values)
    ordered = sorted(values, key=total_order)
    return ordered[len(ordered) // 2] if name == "median" else percentile(name, ordered, False)


def deviation(values: Sequence[float]) -> float:
    mean, squares = values[0], 0.0
    for k, x in enumerate(values[1:], 2):
        moved = mean + (x - mean) / k
        squares += (x - mean) * (x - moved)
        mean = moved
    return math.sqrt(squares / len(values)) if len(values) > 1 else 0.0


def percentile(name: str, ordered: Sequence[float], integers: bool) -> float:
    digits, _, kind = name.lstrip("ep").partition("r")
    p, n = (99.9 if digits == "999" else float(digits)) / 100, len(ordered)
    if not kind or not integers:
        position = p * (n + 1)
    elif kind == "3":
        position = 0.0 if p <= 0.5 / n else float(round(n * p))
    else:
        position = 1 + (n - 1) * p
    if n == 1 or position < 1:
        return ordered[0]
    if position >= n:
        return ordered[-1]
    f = math.floor(position)
    return ordered[f - 1] + (position - f) * (ordered[f] - ordered[f - 1])


def total_order(value: float) -> int:
    bits: int = struct.unpack(">q", struct.pack(">d", value))[0]
    return bits if bits >= 0 else bits ^ HIGHEST


def wrap(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def divide(numerator: int, denominator: int) -> int:
    whole = abs(numerator) // denominator
    return whole if numerator >= 0 else -whole

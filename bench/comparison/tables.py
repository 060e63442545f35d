"""What was measured → Markdown."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.report import table
from bench.together.records import Figures, Run
from bench.together.systems import CARBON, INFLUX, OPENTSDB, VICTORIA

STEADY, HALF, DAY, GROW = "steady", "half", "day", "grow"
AT_A_PACE = ("half", "connections", "paced")
NONE = ""
# What stands for `sync` where there is none.
ACKNOWLEDGES = {
    VICTORIA: "none: a point is in memory for a second or so",
    INFLUX: "none for lines: a batch is in a log, fsynced, within a second",
    CARBON: "none: points are in memory until written, and are never fsynced",
    OPENTSDB: "none: points wait for a batch, then they are HBase's",
}
Of = Callable[[Figures], float | None]


class Column(NamedTuple):
    """Of a table of systems."""

    head: str
    of: Of
    digits: int


def median(figures: Sequence[Figures], of: Of) -> float | None:
    """Of what was measured."""
    values = [value for value in map(of, figures) if value is not None]
    return statistics.median(values) if values else None


def shown(figures: Sequence[Figures], of: Of, digits: int) -> str:
    """The median, and the least and greatest of three and more; nothing where nothing was measured."""
    values = [value for value in map(of, figures) if value is not None]
    if not values:
        return NONE
    text = f"{statistics.median(values):,.{digits}f}"
    return text if len(values) < 3 else f"{text} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def cpu_us(figures: Figures) -> float | None:
    """Of the system and its store, a line."""
    return None if figures.cpu_us is None else figures.cpu_us + (figures.store_cpu_us or 0.0)


def summary(run: Run) -> str:
    """The steady load, and what belongs to no other: the table for the README."""
    head = ["", "lines/s", "× OpenTSDB's", "CPU µs a line", "× VictoriaMetrics'", "HBase's CPU µs", "peak MiB"]
    rows = []
    for system in run.systems():
        some = run.figures(STEADY, system)
        if some:
            rows.append(
                [
                    system,
                    shown(some, lambda f: f.lines_per_s, 0),
                    _times(run, system, OPENTSDB, lambda f: f.lines_per_s),
                    shown(some, lambda f: f.cpu_us, 2),
                    _times(run, system, VICTORIA, cpu_us),
                    shown(some, lambda f: f.store_cpu_us, 2),
                    shown(some, lambda f: f.peak_mib, 0),
                    shown(run.figures(DAY, system), lambda f: f.disk_bytes, 2),
                    _held(run, system),
                ]
            )
    return table([*head, "bytes a point on disk", "bytes a series"], rows)


def _times(run: Run, system: str, other: str, of: Of) -> str:
    """What a system's median is of another's."""
    mine, theirs = (median(run.figures(STEADY, name), of) for name in (system, other))
    return f"{mine / theirs:.2f}" if mine and theirs else NONE


def _held(run: Run, system: str) -> str:
    """Bytes a series of the largest number of them."""
    steps = [f for f in run.figures(GROW, system) if f.series is not None]
    return f"{steps[-1].held_bytes:,.0f}" if steps else NONE


def sizes(run: Run) -> str:
    """How much was measured: data points of most systems, and of those that were given less."""
    rows = []
    for load, title in run.titles.items():
        given = {
            system: max(f.points for f in found) for system in run.systems() if (found := run.figures(load, system))
        }
        most = max(given.values(), default=0)
        less = [f"{system}: {points:,}" for system, points in given.items() if points < most]
        if given:
            rows.append([title, f"{most:,}", "; ".join(less)])
    return table(["", "data points", "fewer"], rows)


def by_load(run: Run, of: Of, digits: int, loads: Sequence[str]) -> str:
    """A figure of every system under some loads."""
    known = [name for name in loads if any(run.all(name, system) for system in run.systems())]
    rows = []
    for system in run.systems():
        cells = [_or_failure(run, load, system, of, digits) for load in known]
        if any(cells):
            rows.append([system, *cells])
    return table(["", *(run.titles[name] for name in known)], rows)


def _or_failure(run: Run, load: str, system: str, of: Of, digits: int) -> str:
    if text := shown(run.figures(load, system), of, digits):
        return text
    return "failed" if any(figures.failed for figures in run.all(load, system)) else NONE


def grown(run: Run) -> str:
    """How systems take more and more series."""
    rows = [
        [
            system,
            f"{f.series:,}",
            shown([f], lambda f: f.lines_per_s, 0),
            shown([f], cpu_us, 1),
            shown([f], lambda f: f.held_bytes, 0),
            shown([f], lambda f: f.peak_mib, 0),
        ]
        for system in run.systems()
        for f in run.figures(GROW, system)
        if f.series is not None
    ]
    return table(["", "series", "new series/s", "CPU µs a series", "bytes held for a series", "peak MiB"], rows)


def paced(run: Run) -> str:
    """What agents cost who send at their own pace, and how long `sync` takes beside them."""
    rows = [
        [
            run.titles[load],
            system,
            shown(some, lambda f: f.sent_per_s, 0),
            shown(some, lambda f: f.cores and f.cores * 100, 1),
            shown(some, cpu_us, 1),
            shown(some, lambda f: f.sync_p50_ms, 0) or ACKNOWLEDGES.get(system, NONE),
            shown(some, lambda f: f.sync_p99_ms, 0),
        ]
        for load in AT_A_PACE
        for system in run.systems()
        if (some := run.figures(load, system))
    ]
    head = ["", "", "lines/s", "% of a core", "CPU µs a line, with the store's", "`sync` p50, ms", "p99, ms"]
    return table(head, rows)


def queried(run: Run) -> str:
    """How long queries took: the first time, and the median of those after it."""
    asked = {system: f.queries_ms for system in run.systems() for f in run.figures(DAY, system) if f.queries_ms}
    names = list(dict.fromkeys(name for found in asked.values() for name in found))
    rows = [
        [name, *(f"{ms[0]:,.1f} / {statistics.median(ms[1:]):,.1f}" for ms in (asked[s][name] for s in asked))]
        for name in names
    ]
    return table(["ms, first / again", *asked], rows)


def failures(run: Run) -> str:
    """What has no figures, and why."""
    found = [record for record in run.records if record.figures.failed]
    return "".join(f"- {record.system}, {run.titles[record.load]}: {record.figures.failed}\n" for record in found)


def report(run: Run) -> str:
    """All of it."""
    flat = [load for load in run.titles if load not in (*AT_A_PACE, GROW)]
    parts = [
        f"{run.machine}. {_versions(run)} {_days(run)}Medians, and (least–greatest) of three rounds or more. The same "
        "lines for all, of some loads slow systems get the first part only. Every point was read back first.",
        f"**Loads**{'' if run.scale == 'full' else f', {run.scale}'}\n\n{sizes(run)}",
        f"**{run.titles.get(STEADY, '')}**, until every point is stored, and the rest in short\n\n{summary(run)}",
        f"**Lines/s until stored**\n\n{by_load(run, lambda f: f.lines_per_s, 0, flat)}",
        f"**CPU µs a line, the system's and its store's**\n\n{by_load(run, cpu_us, 2, flat)}",
        f"**Peak memory, MiB** (without HBase)\n\n{by_load(run, lambda f: f.peak_mib, 0, flat)}",
        f"**At the agents' own pace**\n\n{paced(run)}",
        f"**More and more series**\n\n{grown(run)}",
        f"**Queries** of the day, each answer held against the lines\n\n{queried(run)}",
        f"**No figures**\n\n{failures(run)}" if failures(run) else "",
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _days(run: Run) -> str:
    days = sorted({record.day for record in run.records if record.day})
    if days and not all(record.day for record in run.records):
        days.insert(0, "earlier days")
    return f"Measured on {' and '.join(days)}. " if days else ""


def _versions(run: Run) -> str:
    return "".join(f"{name} {version}; " for name, version in run.versions.items() if version).rstrip("; ") + "."

"""Results as Markdown tables."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.comparison.records import Figures, Run
from bench.comparison.systems import CARBON, INFLUX, OPENTSDB, VICTORIA
from bench.report import table

STEADY, DAY, GROW = "steady", "day", "grow"
AT_A_PACE = ("half", "connections", "paced")
NONE = ""
# How systems without `sync` treat points.
ACKNOWLEDGES = {
    VICTORIA: "none: points stay in memory for about one second",
    INFLUX: "none for lines: batches are logged and fsynced within one second",
    CARBON: "none: points are in memory until written, and are never fsynced",
    OPENTSDB: "none: points wait for a batch and are then sent to HBase",
}
Of = Callable[[Figures], float | None]


class Column(NamedTuple):
    """A column of a table of systems."""

    head: str
    of: Of
    digits: int


def median(figures: Sequence[Figures], of: Of) -> float | None:
    """Return the median of the measured values."""
    values = [value for value in map(of, figures) if value is not None]
    return statistics.median(values) if values else None


def shown(figures: Sequence[Figures], of: Of, digits: int) -> str:
    """Format the median, with minimum and maximum of three or more values. Empty without values."""
    values = [value for value in map(of, figures) if value is not None]
    if not values:
        return NONE
    text = f"{statistics.median(values):,.{digits}f}"
    return text if len(values) < 3 else f"{text} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def cpu_us(figures: Figures) -> float | None:
    """CPU per line of the system and its store."""
    return None if figures.cpu_us is None else figures.cpu_us + (figures.store_cpu_us or 0.0)


def summary(run: Run) -> str:
    """The README's table: the steady load, and values that belong to no other load."""
    head = ["", "lines/s", "× OpenTSDB's", "CPU µs/line", "× VictoriaMetrics'", "HBase's CPU µs", "peak MiB"]
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
    return table([*head, "bytes/point on disk", "bytes/series"], rows)


def _times(run: Run, system: str, other: str, of: Of) -> str:
    """Return the ratio of two systems' medians."""
    mine, theirs = (median(run.figures(STEADY, name), of) for name in (system, other))
    return f"{mine / theirs:.2f}" if mine and theirs else NONE


def _held(run: Run, system: str) -> str:
    """Bytes per series at the largest number of series."""
    steps = [f for f in run.figures(GROW, system) if f.series is not None]
    return f"{steps[-1].held_bytes:,.0f}" if steps else NONE


def sizes(run: Run) -> str:
    """Number of measured data points, and of systems that got fewer."""
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
    """A value of every system under some loads."""
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
    """Results of the growing load."""
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
    return table(["", "series", "new series/s", "CPU µs/series", "memory bytes/series", "peak MiB"], rows)


def paced(run: Run) -> str:
    """CPU of agents at a fixed rate, and the latency of `sync`."""
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
    head = ["", "", "lines/s", "% of a core", "CPU µs/line including the store", "`sync` p50, ms", "p99, ms"]
    return table(head, rows)


def queried(run: Run) -> str:
    """Latencies of queries: the first, and the median of the repeated ones."""
    latencies = {system: f.queries_ms for system in run.systems() for f in run.figures(DAY, system) if f.queries_ms}
    names = list(dict.fromkeys(name for found in latencies.values() for name in found))
    rows = [
        [name, *(f"{ms[0]:,.1f} / {statistics.median(ms[1:]):,.1f}" for ms in (latencies[s][name] for s in latencies))]
        for name in names
    ]
    return table(["ms, first / again", *latencies], rows)


def failures(run: Run) -> str:
    """Failed measurements with their reasons."""
    found = [record for record in run.records if record.figures.failed]
    return "".join(f"- {record.system}, {run.titles[record.load]}: {record.figures.failed}\n" for record in found)


def report(run: Run) -> str:
    """The whole report."""
    flat = [load for load in run.titles if load not in (*AT_A_PACE, GROW)]
    parts = [
        f"{run.machine}. {_versions(run)} {_days(run)}Medians, with (minimum–maximum) of three or more rounds. "
        "All systems receive the same lines; slow systems receive only the first part of some loads. "
        "Every point is read back and verified.",
        f"**Loads**{'' if run.scale == 'full' else f', {run.scale}'}\n\n{sizes(run)}",
        f"**{run.titles.get(STEADY, '')}**, until every point is stored, with a summary\n\n{summary(run)}",
        f"**Lines/s until stored**\n\n{by_load(run, lambda f: f.lines_per_s, 0, flat)}",
        f"**CPU µs/line including the store**\n\n{by_load(run, cpu_us, 2, flat)}",
        f"**Peak memory, MiB** (without HBase)\n\n{by_load(run, lambda f: f.peak_mib, 0, flat)}",
        f"**At a fixed rate**\n\n{paced(run)}",
        f"**Growing number of series**\n\n{grown(run)}",
        f"**Queries** of the day, with every answer verified\n\n{queried(run)}",
        f"**Failed measurements**\n\n{failures(run)}" if failures(run) else "",
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _days(run: Run) -> str:
    days = sorted({record.day for record in run.records if record.day})
    if days and not all(record.day for record in run.records):
        days.insert(0, "earlier days")
    return f"Measured on {' and '.join(days)}. " if days else ""


def _versions(run: Run) -> str:
    return "".join(f"{name} {version}; " for name, version in run.versions.items() if version).rstrip("; ") + "."

"""What was measured, kept in a file after every step, so that a run that is ended may go on, or be mended in part."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.report import OUT
from bench.together.systems import NAMES

FILE = OUT / "all.json"


class Figures(NamedTuple):
    """Of one system under one load. What was not measured is None."""

    points: int = 0
    lines_per_s: float | None = None  # until they are stored
    cpu_us: float | None = None  # a line
    store_cpu_us: float | None = None  # a line: of HBase and its gateway
    peak_mib: float | None = None
    cores: float | None = None  # of the system, while agents sent at their own pace
    sync_p50_ms: float | None = None
    sync_p99_ms: float | None = None
    sent_per_s: float | None = None  # at a pace
    series: int | None = None  # of the load that grows: so many by then
    held_bytes: float | None = None  # a series
    disk_bytes: float | None = None  # a point
    queries_ms: dict[str, list[float]] | None = None  # first, and again
    failed: str = ""  # why there are no figures


class Record(NamedTuple):
    """One measurement."""

    load: str
    system: str
    round: int
    took_s: float  # with starts and checks
    figures: Figures
    day: str = ""  # as in 2026-11-22


class Run(NamedTuple):
    """All of them, and where they were made."""

    scale: str
    machine: str
    versions: dict[str, str]
    titles: dict[str, str]  # of loads
    records: list[Record]

    def figures(self, load: str, system: str) -> list[Figures]:
        """Of all rounds that did not fail."""
        return [f for f in self.all(load, system) if not f.failed]

    def all(self, load: str, system: str) -> list[Figures]:
        """Of all rounds."""
        return [r.figures for r in self.records if (r.load, r.system) == (load, system)]

    def systems(self) -> list[str]:
        """Those that were measured."""
        return sorted({record.system for record in self.records}, key=NAMES.index)

    def has(self, load: str, system: str, number: int) -> bool:
        """Whether it was measured, and did not fail."""
        return any(r[:3] == (load, system, number) and not r.figures.failed for r in self.records)

    def without(self, load: str, system: str, number: int) -> "Run":
        """But for one measurement, which is made anew."""
        return self._replace(records=[r for r in self.records if r[:3] != (load, system, number)])


def save(run: Run, file: Path = FILE) -> None:
    """Write it, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = run._asdict() | {"records": list(_as_dicts(run))}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(text, indent=1) + "\n")
    new.replace(file)


def _as_dicts(run: Run) -> Iterator[dict[str, object]]:
    for record in run.records:
        figures = {name: value for name, value in record.figures._asdict().items() if value not in (None, "")}
        yield record._asdict() | {"figures": figures}


def load(file: Path = FILE) -> Run | None:
    """The one that was saved last."""
    if not file.exists():
        return None
    text = json.loads(file.read_text())
    records = [Record(**r | {"figures": Figures(**r["figures"])}) for r in text["records"]]
    return Run(**text | {"records": records})

"""Results, saved to a file after every step, so that an interrupted run can continue and parts can be repeated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.comparison.systems import NAMES
from bench.report import OUT

FILE = OUT / "all.json"


class Figures(NamedTuple):
    """Results of one system under one load. Unmeasured values are None."""

    points: int = 0
    lines_per_s: float | None = None  # until they are stored
    cpu_us: float | None = None  # per line
    store_cpu_us: float | None = None  # per line, of HBase and its gateway
    peak_mib: float | None = None
    cores: float | None = None  # of the system, at the agents' fixed rate
    sync_p50_ms: float | None = None
    sync_p99_ms: float | None = None
    sent_per_s: float | None = None  # at a fixed rate
    series: int | None = None  # of the growing load: the number at this step
    held_bytes: float | None = None  # per series
    disk_bytes: float | None = None  # per point
    queries_ms: dict[str, list[float]] | None = None  # the first and the repeated ones
    failed: str = ""  # why there are no results


class Record(NamedTuple):
    """One measurement."""

    load: str
    system: str
    round: int
    took_s: float  # including starts and checks
    figures: Figures
    day: str = ""  # as in 2026-11-22


class Run(NamedTuple):
    """All measurements, and the machine."""

    scale: str
    machine: str
    versions: dict[str, str]
    titles: dict[str, str]  # of loads
    records: list[Record]

    def figures(self, load: str, system: str) -> list[Figures]:
        """Return the results of all successful rounds."""
        return [f for f in self.all(load, system) if not f.failed]

    def all(self, load: str, system: str) -> list[Figures]:
        """Return the results of all rounds."""
        return [r.figures for r in self.records if (r.load, r.system) == (load, system)]

    def systems(self) -> list[str]:
        """Return the measured systems."""
        return sorted({record.system for record in self.records}, key=NAMES.index)

    def has(self, load: str, system: str, number: int) -> bool:
        """Whether a measurement exists and was successful."""
        return any(r[:3] == (load, system, number) and not r.figures.failed for r in self.records)

    def without(self, load: str, system: str, number: int) -> "Run":
        """Return the run without one measurement, which is repeated."""
        return self._replace(records=[r for r in self.records if r[:3] != (load, system, number)])


def save(run: Run, file: Path = FILE) -> None:
    """Write the file atomically."""
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
    """Load the last saved run."""
    if not file.exists():
        return None
    text = json.loads(file.read_text())
    records = [Record(**r | {"figures": Figures(**r["figures"])}) for r in text["records"]]
    return Run(**text | {"records": records})

"""Run every system under every load, alternately, and save the results."""

import http.client
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bench import victoria as victoria_peer
from bench.comparison import carbon, influx
from bench.comparison.carbon import running_carbon
from bench.comparison.influx import running_influx
from bench.comparison.loads import SIZES, Load, Wrong, loads
from bench.comparison.mixes import Written, as_paths, write
from bench.comparison.opentsdb import running_peer, running_tsd
from bench.comparison.records import Figures, Record, Run, load, save
from bench.comparison.systems import (
    CARBON,
    EMBEDDED,
    HBASE,
    HBASE_PLAIN,
    INFLUX,
    OPENTSDB,
    PLAIN,
    VICTORIA,
    System,
)
from bench.comparison.victoria import running_victoria
from bench.peers import ONE_REGION, Hbase, running_hbase
from bench.report import machine
from tsd.errors import TsdError

INSTALL = "apt-get install --no-install-recommends"
# Errors that end one measurement, not the run.
FAILURES = (
    Wrong,
    TsdError,
    ExceptionGroup,
    RuntimeError,
    AssertionError,
    OSError,
    ValueError,
    http.client.HTTPException,
    SystemExit,
    subprocess.SubprocessError,
)


class Wanted(NamedTuple):
    """The selection of a run."""

    scale: str
    systems: Callable[[str], bool]
    loads: Callable[[str], bool]
    resume: bool  # keep earlier measurements


def run(wanted: Wanted) -> Run:
    """Run the selection, and save each result at once. Systems on HBase come last, so that HBase does not affect the
    others."""
    size = SIZES[wanted.scale]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # inherited: a thousand agents need descriptors
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also stops the started processes
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        hbase = cache(lambda: stack.enter_context(running_hbase(folder / "hbase", ONE_REGION)))
        found, begun = _begun(wanted), time.monotonic()
        some = [system for system in systems(hbase) if wanted.systems(system.name)]
        for system in some:
            if system.lacks:
                _log(f"{system.name} is skipped: {system.lacks}")
        for on_hbase in (False, True):
            these = [system for system in some if system.hbase is on_hbase and not system.lacks]
            for one in loads(size):
                if these and wanted.loads(one.name):
                    found = _load(one, these, wanted, found, folder)
    _log(f"the run took {(time.monotonic() - begun) / 60:.0f} minutes")
    return found


def systems(hbase: Callable[[], Hbase]) -> list[System]:
    """Return all systems, the fastest first."""
    return [
        System(EMBEDDED, running_tsd, sync=True),
        System(VICTORIA, running_victoria, lacks=_lacks(victoria_peer.PROGRAM, "victoria-metrics")),
        System(PLAIN, partial(running_tsd, plain=True), sync=True, only=("steady", "half", "churn", "http")),
        System(INFLUX, running_influx, lacks=_lacks(influx.PROGRAM, "influxdb")),
        System(
            CARBON,
            running_carbon,
            form="path",
            most_series=10_000,  # half a millisecond of CPU for each new file
            only=("steady", "apart", "churn", "late", "connections", "day", "grow"),
            lacks=_lacks(carbon.PROGRAM, "graphite-carbon"),
        ),
        System(HBASE, lambda h, n: running_tsd(h, n, hbase()), sync=True, most_series=100_000, hbase=True),
        System(OPENTSDB, lambda h, n: running_peer(h, n, hbase()), most_series=100_000, hbase=True),
        System(
            HBASE_PLAIN,
            lambda h, n: running_tsd(h, n, hbase(), plain=True),
            sync=True,
            hbase=True,
            only=("steady", "apart"),
        ),
    ]


def _lacks(program: str | None, package: str) -> str:
    return "" if program else f"{INSTALL} {package}"


def _begun(wanted: Wanted) -> Run:
    """Load the saved results of this scale."""
    titles = {one.name: one.mix.title for one in loads(SIZES[wanted.scale])}
    before = load()
    if before is None or before.scale != wanted.scale:
        return Run(wanted.scale, machine(), versions(), titles, [])
    return before._replace(machine=machine(), versions=versions(), titles=titles)


def versions() -> dict[str, str]:
    """Return the versions of the installed systems."""
    packages = {VICTORIA: "victoria-metrics", INFLUX: "influxdb", CARBON: "graphite-carbon"}
    found = {}
    for name, package in packages.items():
        words = ["dpkg-query", "--show", "--showformat=${Version}", package]
        found[name] = subprocess.run(words, check=False, capture_output=True, text=True).stdout
    return found


def _load(one: Load, these: list[System], wanted: Wanted, found: Run, folder: Path) -> Run:
    """Run every round of a load, systems alternately."""
    suited = [system for system in these if one.suits(system) and (not system.only or one.name in system.only)]
    written: dict[str, Written] = {}
    for number in range(max(one.rounds.values(), default=1)):
        for system in suited:
            if number >= one.rounds.get(system.name, 1) or (wanted.resume and found.has(one.name, system.name, number)):
                continue
            if "put" not in written:
                written["put"] = _written(one, folder)
            if system.form not in written:
                written[system.form] = as_paths(written["put"], one.stop(system))
            found = found.without(one.name, system.name, number)
            begun = time.monotonic()
            home = folder / f"{one.name}-{number}-{system.name.replace(', ', '-').replace(' ', '-')}"
            figures = _measured(one, system, written[system.form], home)
            took_s = time.monotonic() - begun
            day = time.strftime("%Y-%m-%d")
            found.records.extend(Record(one.name, system.name, number, took_s, f, day) for f in figures)
            save(found)
            _log(f"{one.name}, {system.name}, round {number + 1}: {took_s:.0f} s: {_report(figures)}")
    shutil.rmtree(folder / one.name, ignore_errors=True)
    return found


def _written(one: Load, folder: Path) -> Written:
    _log(f"{one.name}: writing lines")
    return write(one.mix, folder / one.name, int(time.time()))  # noqa: TID251 (carbon keeps points for a time)


def _measured(one: Load, system: System, written: Written, home: Path) -> list[Figures]:
    """Measure a newly started system. A failure is returned as a result."""
    now_s = int(time.time())  # noqa: TID251 (as above)
    try:
        with system.start(home, one.needs._replace(span_s=now_s - written.start_s)) as running:
            figures = one.run(one, system, running, written)
    except FAILURES as exc:
        return [Figures(failed=f"{type(exc).__name__}: {exc}")]
    shutil.rmtree(home, ignore_errors=True)
    return figures


def _report(figures: list[Figures]) -> str:
    return "; ".join(
        " ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in f._asdict().items() if v)
        for f in figures
    )


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)

"""The interface of a system in the comparison."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from bench.comparison.mixes import Sums
from bench.process_usage import Usage

NAMES = EMBEDDED, PLAIN, VICTORIA, INFLUX, CARBON, HBASE, HBASE_PLAIN, OPENTSDB = (
    "tsd, embedded",
    "tsd, embedded, pure Python",
    "VictoriaMetrics",
    "InfluxDB",
    "carbon",
    "tsd, HBase",
    "tsd, HBase, pure Python",
    "OpenTSDB 2.4.1, HBase",
)
PATIENCE_S = 240
LOOK_S = 0.02


class Question(NamedTuple):
    """A query of one metric with series that differ in `host`."""

    name: str
    metric: str
    start_s: int
    end_s: int  # after the last point
    host: str = ""  # only this host
    step_s: int = 0  # means of this length for each host; otherwise the sum of all series at each time


class Answer(NamedTuple):
    """The part of an answer on which systems must agree."""

    series: int
    points: int
    values: float  # sum


class Running(Protocol):
    """A newly started system."""

    port: int  # for lines
    http_port: int  # for /api/put; 0 if unsupported
    last: str  # a command that is answered after all earlier lines were read, if any

    def usage(self) -> Usage:
        """Return the usage of all its processes so far."""
        ...

    def store_cpu_s(self) -> float:
        """Return the CPU time of a separate store so far; 0 without one."""
        ...

    def await_stored(self, points: int) -> float:
        """Wait until so many points, counted from the start, are durable and visible to queries. Return the time by the
        monotonic clock."""
        ...

    def found(self, start_s: int, end_s: int) -> Sums:
        """Read back all points of a time range."""
        ...

    def merged_bytes(self) -> int:
        """Return the size on disk after all compaction. No other call is allowed afterwards."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A system with queries."""

    def query(self, question: Question) -> Answer:
        """Run a query."""
        ...


class Needs(NamedTuple):
    """Special requirements of a run."""

    span_s: int = 0  # from the first point to now
    compacts: bool = False  # merge files as soon as writes stop


class System(NamedTuple):
    """How a system is started, and its limitations."""

    name: str
    start: Callable[[Path, Needs], AbstractContextManager[Running]]
    form: str = "put"  # format of lines: put or path
    sync: bool = False  # whether it acknowledges durable lines
    most_series: int = 1_000_000  # in the growing load
    hbase: bool = False  # whether it runs on HBase
    only: tuple[str, ...] = ()  # loads; empty: all
    lacks: str = ""  # a missing requirement


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(what: str, done: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Poll until done. Return the time by the monotonic clock. Raise RuntimeError after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: timeout after {patience_s:,.0f} s")
        time.sleep(LOOK_S)  # noqa: TID251 (other systems do not notify)
    return time.monotonic()


def listening(port: int) -> bool:
    """Whether a connection is accepted on the port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def answer_of(series: Mapping[str, list[float]]) -> Answer:
    """Return the answer for the values of each series."""
    return Answer(len(series), sum(map(len, series.values())), sum(map(sum, series.values())))

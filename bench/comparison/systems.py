"""What a benchmark asks of every system, whoever made it."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from bench.processes import Usage
from bench.together.mixes import Sums

NAMES = EMBEDDED, PLAIN, VICTORIA, INFLUX, CARBON, HBASE, HBASE_PLAIN, OPENTSDB = (
    "tsd, embedded",
    "tsd, embedded, nothing compiled",
    "VictoriaMetrics",
    "InfluxDB",
    "carbon",
    "tsd, HBase",
    "tsd, HBase, nothing compiled",
    "OpenTSDB 2.4.1, HBase",
)
PATIENCE_S = 240
LOOK_S = 0.02


class Question(NamedTuple):
    """A query over one metric, whose series differ in `host`."""

    name: str
    metric: str
    start_s: int
    end_s: int  # after the last point
    host: str = ""  # of which alone
    step_s: int = 0  # means over so long for each host; otherwise all series are summed at every time


class Answer(NamedTuple):
    """What systems must agree on."""

    series: int
    points: int
    values: float  # their sum


class Running(Protocol):
    """A system with state of its own, just started."""

    port: int  # takes lines
    http_port: int  # takes /api/put; 0 where it does not
    last: str  # the command whose answer says that all before it was read, if there is one

    def usage(self) -> Usage:
        """Of all its processes, so far."""
        ...

    def store_cpu_s(self) -> float:
        """Processor time of the store beside it, so far; 0 where it has none."""
        ...

    def await_stored(self, points: int) -> float:
        """Return once so many points, counted from the start, are where a query finds them and a restart keeps them;
        and when that was, by the monotonic clock."""
        ...

    def found(self, start_s: int, end_s: int) -> Sums:
        """Of all points of that time, read back."""
        ...

    def merged_bytes(self) -> int:
        """What points take on disk after all that it does to make that less. Nothing else can be asked afterwards."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A system that answers queries."""

    def ask(self, question: Question) -> Answer:
        """The answer to one."""
        ...


class Needs(NamedTuple):
    """What a run needs beyond the defaults."""

    span_s: int = 0  # from the first point to now
    compacts: bool = False  # whether files are to be merged as soon as nobody writes


class System(NamedTuple):
    """How a kind of system is started, and what it cannot do."""

    name: str
    start: Callable[[Path, Needs], AbstractContextManager[Running]]
    form: str = "put"  # of the lines: put or path
    sync: bool = False  # whether it says when a line is on disk
    most_series: int = 1_000_000  # in the load that grows
    hbase: bool = False  # whether it runs on HBase
    only: tuple[str, ...] = ()  # loads; all where empty
    lacks: str = ""  # what it needs and this machine has not


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(what: str, done: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Look until it is done; when that was, by the monotonic clock. RuntimeError after so many seconds."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {patience_s:,.0f} s")
        time.sleep(LOOK_S)  # noqa: TID251 (a peer tells nobody when it is done)
    return time.monotonic()


def listening(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def answer_of(series: Mapping[str, list[float]]) -> Answer:
    """Of the values of each series."""
    return Answer(len(series), sum(map(len, series.values())), sum(map(sum, series.values())))

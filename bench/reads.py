"""Latency of queries over HTTP: tsd on the embedded store and VictoriaMetrics with the same points, in turn.

Answers are compared before anything is timed. `first` is the first query after a start, or after tsd's caches of names
and hours were dropped. The points of past hours are compacted; those of the open hour were just sent. They are in
memory for the first daemon; it stores them when it stops, before the second starts. The last hour, as dashboards show
it, is asked of a daemon of its own: it begins in stored rows and ends in memory. So are queries that are asked once, as
with the first load of a dashboard: each is about another host.
"""

import http.client
import json
import re
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import click
import numpy as np

from bench.daemon import Daemon, run_tsd, serving
from bench.process_usage import usage
from bench.report import machine, publish, spread, table
from bench.victoria import SHOWN_S, Victoria, running_victoria
from tsd.daemon.settings import now_ms

DAY_S, HOUR_S = 86400, 3600
START_S = 1_700_006_400  # start of an hour
CPUS = 8  # series of a host
CLOSE = 1e-9  # relative tolerance for the order of additions and for VictoriaMetrics' precision
PAUSE_S = 0.3  # after some 80,000 points of an open hour, so that older ones are packed meanwhile, as at agents' pace
REQUEST_S = 2.0  # duration of a measurement of requests per second
ONE_HOUR, ONE_OPEN = "one series, an hour, raw", "one of them, raw"  # asked as fast as possible, too
NO_CACHE = {"tsd.query.cache_memory": "0"}


class Size(NamedTuple):
    """Amount of data."""

    wide: int = 100_000  # series with a point every 60 s, for an hour
    day: int = 1_000  # series with a point every 60 s, for a day
    days: int = 30  # of one series with a point every 10 s
    fresh: int = 20_000  # series with 30 points in the open hour
    recent: tuple[int, ...] = (4, 100, 1000)  # series of metrics with a point every 10 s, up to now
    is_half_stored: bool = False  # whether half of these points of the present hour are stored, as before a restart
    once: int = 0  # hosts with a point every 10 s, up to now: each is asked about once

    @property
    def metrics_of_last_hour(self) -> Sequence[int]:
        """Series of each metric with points up to now."""
        return list(dict.fromkeys([*self.recent, *([self.once * CPUS] if self.once else [])]))


class Question(NamedTuple):
    """One query, as each system understands it."""

    name: str
    path: str  # of tsd
    victoria: str  # the path of VictoriaMetrics


class Rows(NamedTuple):
    """Series of one metric, all with the same times."""

    metric: str
    series: int
    start_s: int
    step_s: int
    points: int

    def lines(self) -> Iterator[str]:
        """Yield lines for an import, some series at a time. The same arguments give the same text."""
        chance = np.random.default_rng(self.series)
        times = [self.start_s + at * self.step_s for at in range(self.points)]
        for number in range(self.series):
            host, cpu = divmod(number, CPUS)
            tags = f"host=h{host:05d} cpu={cpu} dc=d{host % 4}"
            values = np.cumsum(chance.integers(-100, 101, self.points)).tolist()
            yield "".join(
                f"{self.metric} {at} {value / 100:.2f} {tags}\n" for at, value in zip(times, values, strict=True)
            )


def past(size: Size) -> list[Rows]:
    """Return the points of hours that are over. Times are amid their steps: so both systems' buckets are the same."""
    return [
        Rows("reads.wide", size.wide, START_S + 30, 60, 60),
        Rows("reads.day", size.day, START_S + 30, 60, DAY_S // 60),
        Rows("reads.month", 1, START_S + 5, 10, size.days * DAY_S // 10),
    ]


def open_hour(size: Size, now_s: int) -> Rows:
    """Return points of the hour of `now_s`."""
    return Rows("reads.open", size.fresh, now_s - now_s % HOUR_S, 2, 30)


def questions(size: Size, fresh: Rows) -> list[Question]:
    """Return the queries."""
    hour, day, month = HOUR_S, DAY_S, size.days * DAY_S
    wide, by_day, by_month = '{__name__="reads.wide"}', '{__name__="reads.day"}', '{__name__="reads.month"}'
    some = '{__name__="reads.wide",host=~"h0000.*"}'
    middle = f"h{size.wide // CPUS // 2:05d}"
    one = f'{{__name__="reads.wide",host="{middle}",cpu="3"}}'
    newest = f"h{fresh.series // CPUS // 2:05d}"
    found = 10 * CPUS
    return [
        Question(
            f"sum of {size.wide:,} series, an hour",
            _query_path("sum:reads.wide", hour),
            _grid(f"sum({wide})", hour, 60),
        ),
        Question(
            "the same by a tag of 4 values",
            _query_path("sum:reads.wide{dc=*}", hour),
            _grid(f"sum({wide}) by (dc)", hour, 60),
        ),
        Question(
            f"regexp that finds {found} of them",
            _query_path("sum:reads.wide{}{host=regexp(h0000.*)}", hour),
            _grid(f"sum({some})", hour, 60),
        ),
        Question("one of them", _query_path(f"sum:reads.wide{{host={middle},cpu=3}}", hour), _grid(one, hour, 60)),
        Question(
            f"{size.day:,} series, a day, hourly means, summed",
            _query_path("sum:1h-avg:reads.day", day),
            _buckets(f"sum(avg_over_time({by_day}[1h]))", day, 3600),
        ),
        Question(
            f"{size.day:,} series, a day, 5-minute means, by host",
            _query_path("sum:5m-avg:reads.day{host=*}", day),
            _buckets(f"sum(avg_over_time({by_day}[5m])) by (host)", day, 300),
        ),
        Question(
            f"one series, {size.days} days at 10 s, hourly means",
            _query_path("sum:1h-avg:reads.month", month),
            _buckets(f"avg_over_time({by_month}[1h])", month, 3600),
        ),
        Question("the same, raw", _query_path("sum:reads.month", month), _raw(by_month, month)),
        Question(ONE_HOUR, _query_path("sum:reads.month", hour), _raw(by_month, hour)),
        Question(
            f"{fresh.series:,} series × {fresh.points} points of the open hour, summed",
            _query_path(f"sum:{fresh.metric}", hour, fresh.start_s),
            _path(
                "query_range",
                query=f'sum({{__name__="{fresh.metric}"}})',
                start=fresh.start_s,
                end=fresh.start_s + (fresh.points - 1) * fresh.step_s,
                step=fresh.step_s,
            ),
        ),
        Question(
            ONE_OPEN,
            _query_path(f"sum:{fresh.metric}{{host={newest},cpu=3}}", hour, fresh.start_s),
            _path(
                "query",
                query=f'{{__name__="{fresh.metric}",host="{newest}",cpu="3"}}[{hour + 1}s]',
                time=fresh.start_s + hour,
            ),
        ),
    ]


def recent(size: Size, start_s: int, end_s: int) -> list[Rows]:
    """Return points of a time range. Times are amid the steps of means."""
    points = (end_s - start_s) // 10
    return [Rows(f"reads.recent{series}", series, start_s + 5, 10, points) for series in size.metrics_of_last_hour]


def questions_of_last_hour(size: Size, end_s: int) -> list[Question]:
    """Return the queries of the hour before a full minute."""
    found = []
    for series in size.recent:
        metric = f"reads.recent{series}"
        every, first = f'{{__name__="{metric}"}}', end_s - HOUR_S
        found += [
            Question(
                f"{series:,} series, the last hour, summed",
                _query_path(f"sum:{metric}", HOUR_S, first),
                _path("query_range", query=f"sum({every})", start=first + 5, end=end_s - 5, step=10),
            ),
            Question(
                f"{series:,} series, the last hour, minutes, by host",
                _query_path(f"avg:1m-avg:{metric}{{host=*}}", HOUR_S, first),
                _path(
                    "query_range",
                    query=f"avg(avg_over_time({every}[1m])) by (host)",
                    start=first + 60,
                    end=end_s,
                    step=60,
                ),
            ),
        ]
    return found


def questions_asked_once(size: Size, end_s: int) -> dict[str, list[Question]]:
    """Return queries of a few series up to a full minute by their kind. Each is about another host."""
    metric = f"reads.recent{size.once * CPUS}"
    found: dict[str, list[Question]] = {}
    for number in range(size.once):
        host = f"h{number:05d}"
        every = f'{{__name__="{metric}",host="{host}"}}'
        means = f"sum(avg_over_time({every}[1m]))"
        kinds = (
            ("one series", 3600, f"sum:{metric}{{host={host},cpu=3}}", f'{every[:-1]},cpu="3"}}[3600s]'),
            (f"{CPUS} series of a host, minutes", 3600, f"sum:1m-avg:{metric}{{host={host}}}", means),
            ("the same by CPU", 3600, f"sum:1m-avg:{metric}{{host={host},cpu=*}}", f"{means} by (cpu)"),
            ("the same, ten minutes", 600, f"sum:1m-avg:{metric}{{host={host},cpu=*}}", f"{means} by (cpu)"),
        )
        name, length_s, m, query = kinds[number % len(kinds)]
        if query.endswith("s]"):
            theirs = _path("query", query=query, time=end_s)
        else:
            theirs = _path("query_range", query=query, start=end_s - length_s + 60, end=end_s, step=60)
        found.setdefault(name, []).append(Question(name, _query_path(m, length_s, end_s - length_s), theirs))
    return found


def _query_path(m: str, length_s: int, start_s: int = START_S) -> str:
    return f"/api/query?start={start_s}&end={start_s + length_s - 1}&m={quote(m)}"


def _path(kind: str, **words: str | int) -> str:
    return f"/api/v1/{kind}?{urlencode({**words, 'nocache': 1})}"


def _grid(query: str, length_s: int, step_s: int) -> str:
    """Ask for the values at the times of the points."""
    first = START_S + step_s // 2
    return _path("query_range", query=query, start=first, end=first + length_s - step_s, step=step_s)


def _buckets(query: str, length_s: int, step_s: int) -> str:
    """Ask for the values of windows, each at its end."""
    return _path("query_range", query=query, start=START_S + step_s, end=START_S + length_s, step=step_s)


def _raw(series: str, length_s: int) -> str:
    return _path("query", query=f"{series}[{length_s}s]", time=START_S + length_s)


class Rate(NamedTuple):
    """How fast small requests are answered."""

    per_s: float
    cpu_ms: float  # of the system, for one request


class Cost(NamedTuple):
    """What queries take that were not asked before, as medians."""

    ms: float
    cpu_ms: float  # of the system


class System:
    """A system that is asked over one connection."""

    def __init__(self, name: str, port: int, pid: int, path_of: Callable[[Question], str]) -> None:
        self.name = name
        self.port = port
        self.pid = pid
        self.path_of = path_of
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self.first: dict[str, float] = {}
        self.taken: dict[str, list[float]] = {}
        self.rates: dict[str, Rate] = {}  # by query and number of clients
        self.once: dict[str, Cost] = {}  # of queries that are asked once, by their kind

    def query(self, question: Question) -> bytes:
        """Return the body of the answer."""
        self._connection.request("GET", self.path_of(question))
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{self.name}: {question.name}: {answer.status} {body[:500]!r}")
        return body

    def reconnect(self) -> None:
        """Use a new connection for the next query: VictoriaMetrics closes one that was idle for a minute."""
        self._connection.close()

    def timed(self, question: Question) -> float:
        """Query once and return the latency in ms."""
        begun = time.perf_counter()
        self.query(question)
        return (time.perf_counter() - begun) * 1000


@click.command()
@click.option("--series", default=100_000, help="Series of an hour at 60 s.")
@click.option("--day-series", default=1_000, help="Series of a day at 60 s.")
@click.option("--days", default=30, help="Days of one series at 10 s.")
@click.option("--open-series", default=20_000, help="Series with 30 points in the open hour.")
@click.option("--recent", multiple=True, type=int, help="Series of a metric with points up to now; may be repeated.")
@click.option("--half-stored", is_flag=True, help="Store half of the points of the present hour early.")
@click.option("--once", default=0, help="Hosts of 8 series, each asked about once: the first load of a dashboard.")
@click.option("--rounds", default=7, help="Repetitions of each query on each system, alternating.")
@click.option("--only", default="", help="Only queries with a name that contains this: 'regexp'.")
def reads(
    series: int,
    day_series: int,
    days: int,
    open_series: int,
    recent: tuple[int, ...],
    half_stored: bool,
    once: int,
    rounds: int,
    only: str,
) -> None:
    """Latency of queries: tsd with and without its cache, and VictoriaMetrics with the same points."""
    size = Size(series, day_series, days, open_series, recent or Size().recent, half_stored, once)
    fresh = open_hour(size, now_ms() // 1000)
    chosen = [question for question in questions(size, fresh) if only in question.name]
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        victoria = stack.enter_context(running_victoria(folder / "victoria"))
        settings = {"tsd.storage.path": str(folder / "tsd")}
        lines = 0
        for rows in past(size):
            text = folder / rows.metric
            with text.open("w") as file:
                file.writelines(rows.lines())
            run_tsd(settings, "import", str(text))
            lines += _send(victoria.port, text)
            text.unlink()
        run_tsd(settings, "compact", "--until", str(START_S + (size.days + 1) * DAY_S))
        text = folder / "fresh"
        with text.open("w") as file:
            file.writelines(fresh.lines())
        victoria.await_stored(lines + _send(victoria.port, text))
        peer = System("VictoriaMetrics", victoria.web_port, victoria.pid, lambda question: question.victoria)
        found: list[System] = []
        for title, extra in (("tsd", NO_CACHE), ("tsd, result cache", {})):
            with serving(folder / "tsd", {**settings, **extra}) as daemon:
                if title == "tsd":
                    _send(daemon.port, text)  # queries see the points; they are stored when their hour is over
                mine = System(title, daemon.port, daemon.pid, lambda question: question.path)
                _measure(mine, peer, daemon, chosen, rounds)
                found.append(mine)
        end_s = now_ms() // 60_000 * 60
        latest = [question for question in questions_of_last_hour(size, end_s) if only in question.name]
        if latest or size.once:
            _measure_last_hour(found[-1], victoria, peer, folder, size, end_s, latest, rounds)
        systems = [*found, peer]
    publish(
        "reads",
        _report(systems, [*chosen, *latest]),
        {one.name: [one.first, one.taken, one.rates, one.once] for one in systems},
    )


def _measure_last_hour(
    mine: System,
    victoria: Victoria,
    peer: System,
    folder: Path,
    size: Size,
    end_s: int,
    chosen: Sequence[Question],
    rounds: int,
) -> None:
    """Time the queries of the last hour, with a daemon of its own, as a part of `mine`."""
    settings, text = {"tsd.storage.path": str(folder / "recent")}, folder / "lines"
    hour_s = end_s // HOUR_S * HOUR_S
    with text.open("w") as file:
        file.writelines(line for rows in recent(size, hour_s - HOUR_S, hour_s) for line in rows.lines())
    run_tsd(settings, "import", str(text))
    run_tsd(settings, "compact", "--until", str(hour_s))
    _send(victoria.port, text)
    with text.open("w") as file:
        each = [part.splitlines(keepends=True) for rows in recent(size, hour_s, end_s) for part in rows.lines()]
        file.writelines(lines[at] for at in range(len(each[0])) for lines in each)  # as agents send
    _send(victoria.port, text)
    with serving(folder / "recent", settings) as daemon:
        half = text.stat().st_size // 2 if size.is_half_stored else 0
        if half:
            _send(daemon.port, text, pause_s=PAUSE_S, until=half)
            daemon.flush()
        _send(daemon.port, text, pause_s=PAUSE_S, since=half)
        peer.reconnect()
        lone = System(mine.name, daemon.port, daemon.pid, lambda question: question.path)
        for kind, asked in questions_asked_once(size, end_s).items():
            _await_equal(asked[:1], lone, peer)
            _measure_once(kind, asked[1:], lone, peer)
        _await_equal(chosen, lone, peer)
        _measure(lone, peer, daemon, chosen, rounds, forgets=False)
    mine.first |= lone.first
    mine.taken |= lone.taken
    mine.once |= lone.once


def _measure_once(kind: str, asked: Sequence[Question], mine: System, peer: System) -> None:
    """Ask each query once, and end the benchmark if two of the answers differ."""
    found = []
    for system in (mine, peer):
        taken, answers, cpu_s = [], [], _cpu_s(system.pid)
        for question in asked:
            begun = time.perf_counter()
            answers.append(system.query(question))
            taken.append((time.perf_counter() - begun) * 1000)
        system.once[kind] = Cost(statistics.median(taken), (_cpu_s(system.pid) - cpu_s) * 1000 / len(asked))
        found.append(answers)
    if not all(map(_are_same, *found)):
        raise SystemExit(f"{mine.name}: {kind}: another answer than VictoriaMetrics': no figure")
    print(f"bench: {mine.name}: {kind}, asked once: {mine.once[kind]}, {peer.once[kind]}", file=sys.stderr)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of the threads that a process has, more exactly than `usage`."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _await_equal(chosen: Sequence[Question], mine: System, peer: System) -> None:
    """Wait until VictoriaMetrics shows the newest points, which takes it some seconds."""
    deadline = time.monotonic() + SHOWN_S
    while not all(_is_same(question, mine, peer) for question in chosen) and time.monotonic() < deadline:
        continue  # each answer takes a while


def _measure(
    mine: System, peer: System, daemon: Daemon, chosen: Sequence[Question], rounds: int, *, forgets: bool = True
) -> None:
    """Time all queries in turn. The daemon `forgets` names and hours before each: then it stores open points, too."""
    for question in chosen:
        if forgets:
            daemon.forget()
        mine.first[question.name] = mine.timed(question)
        peer.first.setdefault(question.name, peer.timed(question))
        _check(question, mine, peer)
        for _ in range(rounds):
            for system in (mine, peer):
                system.taken.setdefault(question.name, []).append(system.timed(question))
        shown = [round(statistics.median(system.taken[question.name]), 1) for system in (mine, peer)]
        print(f"bench: {mine.name}: {question.name}: {shown} ms", file=sys.stderr)
        if question.name in (ONE_HOUR, ONE_OPEN):
            for clients in (1, 8):
                for system in (mine, peer):
                    system.rates[f"{question.name}, {clients} clients"] = _request_rate(system, question, clients)


def _request_rate(system: System, question: Question, clients: int) -> Rate:
    """Return the rate at which some clients, each with one connection, get answers."""
    request = f"GET {system.path_of(question)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    connections = {one.fileno(): one for one in (_connected(system.port) for _ in range(clients))}
    got = dict.fromkeys(connections, b"")
    poller = select.epoll()
    for number, connection in connections.items():
        poller.register(number, select.EPOLLIN)
        connection.sendall(request)
    count, begun, cpu_s = 0, time.perf_counter(), usage(system.pid).cpu_s
    while time.perf_counter() < begun + REQUEST_S:
        for number, _ in poller.poll():
            got[number] += connections[number].recv(1 << 20)
            if _is_whole(got[number]):
                assert b" 200 " in got[number][:15], got[number][:500]
                count, got[number] = count + 1, b""
                connections[number].sendall(request)
    taken, cpu_s = time.perf_counter() - begun, usage(system.pid).cpu_s - cpu_s
    poller.close()
    for connection in connections.values():
        connection.close()
    return Rate(count / taken, cpu_s * 1000 / count)


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def _is_whole(answer: bytes) -> bool:
    """Return whether an HTTP answer is complete.

    >>> _is_whole(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n[]")
    True
    """
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def _send(port: int, text: Path, *, pause_s: float = 0.0, since: int = 0, until: int = sys.maxsize) -> int:
    """Send lines as put commands, with pauses in between, and return how many. End the benchmark if one is refused.
    Lines are sent that end between two places of the file."""
    count = end = 0
    with _connected(port) as connection, text.open() as file:
        connection.settimeout(600)
        while part := file.readlines(1 << 22):
            end += sum(map(len, part))
            if not since < end <= until:
                continue
            connection.sendall("".join([f"put {line}" for line in part]).encode())
            count += len(part)
            if select.select([connection], [], [], pause_s)[0]:
                raise SystemExit(f"a line was refused: {connection.recv(500)!r}")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):  # until everything is read
            continue
    return count


def _check(question: Question, mine: System, peer: System) -> None:
    """End the benchmark if two answers differ by more than the order of additions."""
    if not _is_same(question, mine, peer):
        raise SystemExit(f"{mine.name}: {question.name}: another answer than VictoriaMetrics': no figure")


def _is_same(question: Question, mine: System, peer: System) -> bool:
    """Return whether the answers to a query are the same, see `_are_same`."""
    return _are_same(mine.query(question), peer.query(question))


def _are_same(mine: bytes, peer: bytes) -> bool:
    """Return whether two answers differ by no more than the order of additions."""
    ours = {tuple(sorted(group["tags"].items())): list(group["dps"].values()) for group in json.loads(mine)}
    theirs = {
        tuple(sorted((name, text) for name, text in series["metric"].items() if name != "__name__")): [
            float(value) for _, value in series["values"]
        ]
        for series in json.loads(peer)["data"]["result"]
    }
    assert ours
    groups = list(zip(_in_order(ours), _in_order(theirs), strict=True)) if len(ours) == len(theirs) else []
    return bool(groups) and all(len(a) == len(b) and np.allclose(a, b, rtol=CLOSE, atol=1e-6) for a, b in groups)


def _in_order(groups: Mapping[tuple[tuple[str, str], ...], list[float]]) -> list[list[float]]:
    """Return the values of groups in order of their tags. Of one group tsd tells the common tags, too."""
    if len(groups) == 1:
        return list(groups.values())
    grouping = set.intersection(*(({name for name, _ in key}) for key in groups))
    varying = sorted(name for name in grouping if len({dict(key)[name] for key in groups}) == len(groups))
    return [groups[key] for key in sorted(groups, key=lambda key: dict(key)[varying[0]])]


def _report(systems: Sequence[System], chosen: Sequence[Question]) -> str:
    *ours, peer = systems
    head = ["ms", *(f"{one.name}: {kind}" for one in systems for kind in ("first", "again"))]
    head += [f"{one.name} / {peer.name}" for one in ours]
    rows = []
    for question in chosen:
        times = [figure for one in systems for figure in _times(one, question.name)]
        theirs = statistics.median(peer.taken[question.name])
        ratios = [
            f"{statistics.median(one.taken[question.name]) / theirs:.2f}" if question.name in one.taken else ""
            for one in ours
        ]
        rows.append([question.name, *times, *ratios])
    for key, peers in peer.rates.items():
        rates = [figure for one in systems for figure in ("", f"{one.rates[key].per_s:,.0f}")]
        ratios = [f"{one.rates[key].per_s / peers.per_s:.2f}" for one in ours]
        rows.append([f"{key}: requests/s", *rates, *ratios])
        times = [figure for one in systems for figure in ("", f"{one.rates[key].cpu_ms:.2f}")]
        ratios = [f"{one.rates[key].cpu_ms / peers.cpu_ms:.1f}" for one in ours]
        rows.append([f"{key}: CPU ms a request", *times, *ratios])
    for kind, theirs_once in peer.once.items():
        for what, figure in (("ms", 0), ("CPU ms", 1)):
            costs = [f"{one.once[kind][figure]:.2f}" if kind in one.once else "" for one in systems]
            ratios = [f"{one.once[kind][figure] / theirs_once[figure]:.2f}" if kind in one.once else "" for one in ours]
            rows.append([f"{kind}, asked once: {what}", *(cell for cost in costs for cell in (cost, "")), *ratios])
    return f"One connection unless said otherwise; {machine()}.\n\n{table(head, rows)}"


def _times(system: System, name: str) -> tuple[str, str]:
    if name not in system.taken:
        return "", ""
    return f"{system.first[name]:.1f}", spread(system.taken[name], 1)

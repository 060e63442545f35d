"""Queries: tsd on both engines and a real OpenTSDB on the same HBase with the same points, alternately.

Each answer is compared with OpenTSDB's before timing starts.
"""

import http.client
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import run_tsd, serving
from bench.lines import ROUND_S, START_S
from bench.peers import running_hbase, running_opentsdb
from bench.report import machine, publish, spread, table

DAY_S = 86400
CPUS = 10  # series per host of the metric queried over a day
WARM_UPS_S = 12.0  # per query and system, or
WARM_UPS = 1500  # repetitions: the compilers of OpenTSDB and of the gateway need many
CLOSE = 1e-12  # relative tolerance for the order of additions


class Size(NamedTuple):
    """Amount of data."""

    series: int  # over a day
    wide: int  # of one metric, an hour of six points


class Question(NamedTuple):
    """One request."""

    name: str
    path: str
    first: bool = False  # drop tsd's caches before


def questions(size: Size) -> list[Question]:
    """Return the queries."""
    hour = f"/api/query?start={START_S}&end={START_S + 3599}&m="
    day = f"/api/query?start={START_S}&end={START_S + DAY_S - 1}&m="
    over_day = f"{day}avg:1m-avg:bench.day{{host=*}}"
    return [
        Question("(a) one series, one hour", f"{hour}sum:bench.day{{host=h000,cpu=0}}"),
        Question("(b) 100 series summed, an hour", f"{hour}sum:bench.day{{}}{{host=wildcard(h00*)}}"),
        Question(f"(c) {size.series:,} series, a day, avg:1m-avg by host, first", over_day, first=True),
        Question(f"(c) {size.series:,} series, a day, avg:1m-avg by host, again", over_day),
        Question(f"(d) one host of {size.wide:,} series", f"{hour}sum:bench.wide{{host=w{size.wide // 2:06d}}}"),
    ]


def lines(size: Size) -> Iterator[str]:
    """Yield points for an import, series by series."""
    chance = random.Random(1)
    for number in range(size.series):
        host, cpu = divmod(number, CPUS)
        tags = f"host=h{host:03d} cpu={cpu}"
        values = [f"{chance.uniform(0, 100):.2f}" for _ in range(DAY_S // ROUND_S)]
        yield "".join(f"bench.day {START_S + at * ROUND_S} {value} {tags}\n" for at, value in enumerate(values))
    for number in range(size.wide):
        yield "".join(
            f"bench.wide {START_S + at * 600} {chance.uniform(0, 100):.2f} host=w{number:06d}\n" for at in range(6)
        )


class System:
    """A system queried over one connection, as by a dashboard."""

    def __init__(self, name: str, port: int, forget: Callable[[], None] = lambda: None) -> None:
        """`forget` drops its caches of names and hours."""
        self.name = name
        self._forget = forget
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.taken: dict[str, list[float]] = {}

    def query(self, question: Question) -> bytes:
        """Return the body of the answer."""
        self._connection.request("GET", question.path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{self.name}: {question.name}: {answer.status} {body[:500]!r}")
        return body

    def timed(self, question: Question) -> None:
        """Query once and record the latency in ms."""
        if question.first:
            self._forget()
        begun = time.perf_counter()
        self.query(question)
        self.taken.setdefault(question.name, []).append((time.perf_counter() - begun) * 1000)

    def warm_up(self, question: Question) -> None:
        """Repeat the query until its latency is stable."""
        until = time.monotonic() + WARM_UPS_S
        for _ in range(WARM_UPS):
            self.timed(question)
            if time.monotonic() > until:
                break
        del self.taken[question.name]


@click.command()
@click.option("--series", default=1000, help="Series of the metric queried over a day, a point every ten seconds.")
@click.option("--wide", default=100_000, help="Series of the metric of which one host is queried.")
@click.option("--rounds", default=9, help="Repetitions of each query on each system, alternating.")
@click.option("--only", default="", help="Only queries with a name that contains this: '(c)'.")
def query(series: int, wide: int, rounds: int, only: str) -> None:
    """Queries over HTTP: tsd on both engines and a real OpenTSDB with the same points."""
    size = Size(series, wide)
    chosen = [question for question in questions(size) if only in question.name]
    if not chosen:
        raise SystemExit(f"bench: --only names no query, wanted a part of one of {[q.name for q in questions(size)]}")
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        text = folder / "lines"
        with text.open("w") as file:
            file.writelines(lines(size))
        hbase = stack.enter_context(running_hbase(folder / "hbase"))
        # On HBase the index is the operator's choice: only tsd may create new series then.
        index = {"tsd.query.series_index": "true", "tsd.query.series_table": "query-series"}
        tables = {**hbase.settings("query", **index), "tsd.storage.path": str(folder / "on-hbase")}
        embedded = {"tsd.storage.path": str(folder / "embedded")}
        for given in (tables, embedded):
            run_tsd(given, "import", str(text))
            run_tsd(given, "compact", "--until", str(START_S + 2 * DAY_S))
        peer = stack.enter_context(running_opentsdb(folder / "opentsdb", hbase, tables))
        on_hbase = stack.enter_context(serving(folder / "on-hbase", tables))
        in_folder = stack.enter_context(serving(folder / "embedded", embedded))
        systems = [
            System("OpenTSDB", peer.port),
            System("tsd, HBase", on_hbase.port, on_hbase.forget),
            System("tsd, embedded", in_folder.port, in_folder.forget),
        ]
        for question in chosen:
            _check(systems, question)
            for system in systems:
                system.warm_up(question)
            for _ in range(rounds):
                for system in systems:
                    system.timed(question)
            shown = {system.name: round(statistics.median(system.taken[question.name]), 1) for system in systems}
            print(f"bench: {question.name}: {shown} ms", file=sys.stderr)
    publish("query", _report(systems, chosen), {system.name: system.taken for system in systems})


def _check(systems: Sequence[System], question: Question) -> None:
    """End the benchmark if two answers differ by more than the order of additions."""
    systems[0].query(question)  # its first answer after a start lacked a series, once in 12 starts
    answers = [_by_tags(json.loads(system.query(question))) for system in systems]
    assert answers[0], question
    for system, answer in zip(systems[1:], answers[1:], strict=True):
        if answer.keys() != answers[0].keys() or not all(_alike(answers[0][key], answer[key]) for key in answer):
            raise SystemExit(f"{system.name}: {question.name}: another answer than OpenTSDB's: no figure")


def _by_tags(answer: list[dict[str, dict[str, float]]]) -> dict[tuple[tuple[str, float], ...], dict[str, float]]:
    return {tuple(sorted(group["tags"].items())): group["dps"] for group in answer}


def _alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(abs(one[t] - other[t]) <= CLOSE * abs(one[t]) for t in one)


def _report(systems: Sequence[System], chosen: Sequence[Question]) -> str:
    head = ["ms", *(system.name for system in systems), *(f"{s.name}: times faster" for s in systems[1:])]
    rows = []
    for question in chosen:
        taken = [system.taken[question.name] for system in systems]
        ratios = [[a / b for a, b in zip(taken[0], mine, strict=True)] for mine in taken[1:]]
        rows.append([question.name, *(spread(some, 1) for some in taken), *(spread(some, 1) for some in ratios)])
    return f"Warm, one connection; {machine()}.\n\n{table(head, rows)}"

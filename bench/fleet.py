"""Agents in real time: each sends its lines every few seconds, in the ways in which agents really send.

Both systems get the same lines at the same time on the same machine, so their ratio does not depend on its load. The
CPU counts after two rounds, in which series are new. That every line arrived is verified.
"""

import gzip
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import trio

from bench.daemon import serving
from bench.process_usage import usage
from bench.report import machine, publish, table
from bench.victoria import running_victoria

TSD, VICTORIA = "tsd, embedded", "VictoriaMetrics"
WARM_ROUNDS, WARM_S = 2, 3.0
ARRIVAL_S = 60.0
ANSWER_BYTES = 4096
PACKET_BYTES = 4096  # what Go's HTTP client sends at once
HEAD = (  # as Go's HTTP client sends it
    b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json\r\n%bAccept-Encoding: gzip\r\n\r\n"
)
GZIP = b"Content-Encoding: gzip\r\n"


class Way(NamedTuple):
    """How agents send."""

    is_http: bool = False
    closes: bool = False  # a new connection for each flush
    syncs: bool = False  # with `sync` after the lines, if the system knows it
    is_gzip: bool = False


WAYS = {
    "telnet": Way(),
    "telnet-sync": Way(syncs=True),
    "telnet-close": Way(closes=True),
    "http": Way(is_http=True),
    "http-gzip": Way(is_http=True, is_gzip=True),
    "http-close": Way(is_http=True, closes=True),
}


class Agents(NamedTuple):
    """Their number, and what each sends."""

    number: int
    lines: int
    every_s: float  # 0: as fast as they are answered


class System(NamedTuple):
    """A running system."""

    pid: int
    port: int
    http_port: int
    knows_sync: bool
    received: Callable[[], int]


class Figures(NamedTuple):
    """Results of one system for one way of sending."""

    flushes_per_s: float
    cpu_share: float  # of a core
    cpu_us: float  # per flush


@click.command()
@click.option("--agents", default=500, help="Number of agents.")
@click.option("--lines", default=50, help="Lines that an agent sends at a time.")
@click.option("--every", "every_s", default=10.0, help="Seconds from flush to flush; 0: as soon as one is answered.")
@click.option("--seconds", default=60.0, help="Duration of the measurement, after two rounds.")
@click.option("--way", "ways", multiple=True, type=click.Choice([*WAYS]), default=[*WAYS], help="How they send.")
@click.option("--only", type=click.Choice([TSD, VICTORIA]), help="One system, in place of both at once.")
def fleet(agents: int, lines: int, every_s: float, seconds: float, ways: Sequence[str], only: str | None) -> None:
    """Agents in real time, by telnet and HTTP: CPU of tsd and VictoriaMetrics."""
    found = {way: _measure(Agents(agents, lines, every_s), WAYS[way], seconds, only) for way in ways}
    rows = [
        [way, name, f"{f.flushes_per_s:,.0f}", f"{f.cpu_share:.1%}", f"{f.cpu_us:,.0f}", f"{f.cpu_us / lines:.1f}",
         f"{f.cpu_us / by_name[VICTORIA].cpu_us:.2f}" if VICTORIA in by_name else ""]
        for way, by_name in found.items()
        for name, f in by_name.items()
    ]  # fmt: skip
    head = ["", "", "flushes/s", "CPU of one core", "CPU µs/flush", "CPU µs/line", "× VictoriaMetrics"]
    pace = f"every {every_s:g} s" if every_s else "without a pause"
    note = f"{agents:,} agents × {lines} lines {pace}, all systems at once; {machine()}.\n\n"
    publish("fleet", note + table(head, rows), found)


def _measure(agents: Agents, way: Way, seconds: float, only: str | None) -> Mapping[str, Figures]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True)))
        systems = {}
        if only != VICTORIA:
            tsd = stack.enter_context(serving(home / "tsd", {"tsd.core.auto_create_metrics": "true"}))
            systems[TSD] = System(tsd.pid, tsd.port, tsd.port, True, lambda: tsd.stats()["ledger.received"])
        if only != TSD:
            other = stack.enter_context(running_victoria(home / "victoria"))
            systems[VICTORIA] = System(other.pid, other.port, other.http_port, False, other.received)
        return trio.run(_run, agents, way, seconds, systems)


async def _run(agents: Agents, way: Way, seconds: float, systems: Mapping[str, System]) -> Mapping[str, Figures]:
    """Let the agents send to all systems, and return what each took."""
    begin = trio.current_time() + 1
    warm = begin + max(WARM_ROUNDS * agents.every_s, WARM_S)
    end = warm + seconds
    sent = dict.fromkeys(systems, 0)
    async with trio.open_nursery() as nursery:
        for at, (name, system) in enumerate(systems.items()):

            def count(name: str = name) -> None:
                sent[name] += 1

            for number in range(agents.number):
                share = (number + at / len(systems)) / agents.number
                nursery.start_soon(_send, agents, way, system, number, begin + agents.every_s * share, end, count)
        await trio.sleep_until(warm)
        before = {name: (usage(system.pid).cpu_s, sent[name]) for name, system in systems.items()}
        await trio.sleep_until(end)
        after = {name: (usage(system.pid).cpu_s, sent[name]) for name, system in systems.items()}
    found = {}
    for name, system in systems.items():
        _check(name, system, sent[name] * agents.lines)
        spent, flushes = (late - early for late, early in zip(after[name], before[name], strict=True))
        found[name] = Figures(flushes / seconds, spent / seconds, spent / flushes * 1e6)
    return found


def _check(name: str, system: System, wanted: int) -> None:
    """End the benchmark with status 1 if lines are missing."""
    deadline = time.monotonic() + ARRIVAL_S
    while (found := system.received()) < wanted:  # an agent may have repeated some
        if time.monotonic() > deadline:
            raise SystemExit(f"{name} has {found} lines of {wanted}: the figures mean nothing")


async def _send(
    agents: Agents, way: Way, system: System, number: int, due: float, end: float, count: Callable[[], None]
) -> None:
    """Send the lines of an agent when they are due."""
    flush = _http if way.is_http else _telnet
    stream = None
    while due < end:
        await trio.sleep_until(due)
        if stream is None:
            stream = await _connect(number, system.http_port if way.is_http else system.port)
        try:
            await flush(stream, way, system, _points(number, agents.lines))
        except trio.BrokenResourceError:  # VictoriaMetrics ends new HTTP connections on a busy machine
            stream = None
            continue
        if way.closes:
            await stream.aclose()
            stream = None
        count()
        due = due + agents.every_s if agents.every_s else trio.current_time()
    if stream is not None:
        await stream.aclose()


async def _connect(number: int, port: int) -> trio.SocketStream:
    """Connect from an agent's own address."""
    sock = trio.socket.socket()
    await sock.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


def _points(number: int, lines: int) -> list[tuple[str, int, str, str]]:
    """Return metric, time, value and host of an agent's points."""
    now_s = int(time.time())  # noqa: TID251 (the agents' clock)
    host = f"web{number:05d}"
    return [(f"bench.fleet.metric{at:02d}", now_s, _value(number, at, now_s), host) for at in range(lines)]


def _value(number: int, at: int, now_s: int) -> str:
    """Return a gauge with two decimals, a counter or a small integer."""
    match at % 4:
        case 0 | 1:
            return f"{(number * at + now_s * 7) % 100}.{(now_s * 13 + at) % 100:02d}"
        case 2:
            return str(number * 1_000_003 + (now_s % 100_000) * 577)
        case _:
            return str((number + at + now_s) % 200)


async def _telnet(stream: trio.SocketStream, way: Way, system: System, points: list[tuple[str, int, str, str]]) -> None:
    text = "".join([f"put {metric} {at} {value} host={host} dc=fra\n" for metric, at, value, host in points])
    syncs = way.syncs and system.knows_sync
    await stream.send_all((text + "sync\n" if syncs else text).encode())
    if way.closes:
        await stream.send_eof()
    if syncs or way.closes:
        answer = await stream.receive_some(ANSWER_BYTES)
        assert answer.startswith(b"synced ") if syncs else not answer, answer


async def _http(stream: trio.SocketStream, way: Way, _: System, points: list[tuple[str, int, str, str]]) -> None:
    objects = [
        f'{{"metric":"{metric}","timestamp":{at},"value":{value},"tags":{{"dc":"fra","host":"{host}"}}}}'
        for metric, at, value, host in points
    ]
    body = f"[{','.join(objects)}]".encode()
    if way.is_gzip:
        body = gzip.compress(body, 6)
    request = HEAD % (len(body), GZIP if way.is_gzip else b"") + body
    for at in range(0, len(request), PACKET_BYTES):
        await stream.send_all(request[at : at + PACKET_BYTES])
    answer = await stream.receive_some(ANSWER_BYTES)
    assert answer.startswith(b"HTTP/1.1 204 "), answer

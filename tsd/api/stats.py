"""/api/stats and its subpaths, and /stats: the statistics of the daemon, in OpenTSDB's form.

Statistics that OpenTSDB has get OpenTSDB's names. Of the others, `tsd.ledger.*` accounts for every put line (received =
stored + journaled + refused). OpenTSDB lacks two more: /api/stats/clients lists clients and their traffic,
/api/stats/rejected counts the refused lines in the log by group, as `tsd rejected --summary` does.
"""

import platform
import resource
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tsd.api.messages import answer, check_method, limit_in
from tsd.auth.authenticator import AuthStatistics
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, REASONS, UNKNOWN_NAME, Refused
from tsd.ingest.canary import CanaryStats
from tsd.ingest.journal.journal import JournalStats
from tsd.ingest.rejected.files import RejectedFilter, groups, read_entries
from tsd.ingest.rejected.log import RejectedStats
from tsd.ingest.series import HAS_LOOP
from tsd.server.clients import OTHERS, Client, ClientStatistics
from tsd.server.http.messages import TEXT, Endpoint, Request, Response
from tsd.server.http.stats import PERCENTILES, HttpStatistics, RecentLatencies
from tsd.server.listener import ListenerStatistics
from tsd.server.tls import TlsStatistics
from tsd.tables.catalog import Stat


class DaemonStats(NamedTuple):
    """The statistics of all parts of a daemon at one moment."""

    listener: ListenerStatistics
    telnet_commands: int
    web: HttpStatistics
    truncated_lines: int
    coalesced_errors: int
    accepted: int
    received: int
    stored: int
    journaled: int
    refused: Mapping[str, int]
    journal: JournalStats
    backpressure: bool
    windows: int
    held_points: int
    early_releases: int
    cells: int
    write_retries: int
    series: int
    tables: Sequence[Stat]
    store: Mapping[str, int]
    query_cache: Mapping[str, int]
    query_warnings: int
    clients: ClientStatistics
    rejected: RejectedStats
    access: AuthStatistics
    tls: TlsStatistics | None  # None: no TLS
    canary: CanaryStats | None  # None: off
    task_failures: int
    started_s: int  # Unix seconds


def render(stats: Iterable[Stat], now_s: int, host_tags: str) -> bytes:
    """Return the reply of the telnet command `stats`.

    >>> render([Stat("rpc.received", 3, "type=telnet")], 1700000000, "host=a")
    b'tsd.rpc.received 1700000000 3 type=telnet host=a\\n'
    """
    lines = ((f"tsd.{s.name}", f"{now_s}", f"{s.value}", s.tag, host_tags, s.last_tag) for s in stats)
    return "".join(" ".join(filter(None, words)) + "\n" for words in lines).encode()


def as_points(stats: Iterable[Stat], now_s: int, host_tags: str) -> list[dict[str, Any]]:
    """Return the answer of /api/stats: data points with texts as values.

    >>> as_points([Stat("rpc.received", 3, "type=http")], 1700000000, "host=a")
    [{'metric': 'tsd.rpc.received', 'timestamp': 1700000000, 'value': '3', 'tags': {'type': 'http', 'host': 'a'}}]
    """
    common = host_tags.split(" ")
    return [
        {
            "metric": f"tsd.{stat.name}",
            "timestamp": now_s,
            "value": str(stat.value),
            "tags": dict(tag.split("=", 1) for tag in (stat.tag, *common, stat.last_tag) if tag),
        }
        for stat in stats
    ]


def collect(snapshot: DaemonStats) -> Iterator[Stat]:
    """Yield the statistics in order: OpenTSDB's first, in its order."""
    yield from _opentsdb_connections(snapshot)
    yield from (stat for stat in snapshot.tables if stat.name.startswith("uid."))
    yield Stat("datapoints.added", snapshot.accepted, "type=all", "class=TSDB")
    yield from (stat for stat in snapshot.tables if stat.name.startswith("compaction."))
    yield from _ledger(snapshot)
    yield from _clients(snapshot)
    yield from _access(snapshot.access, snapshot.tls)
    yield from _storage(snapshot)


def _opentsdb_connections(snapshot: DaemonStats) -> Iterator[Stat]:
    listener = snapshot.listener
    yield Stat("connectionmgr.connections", listener.open, "type=open")
    yield Stat("connectionmgr.connections", listener.rejected, "type=rejected")
    yield Stat("connectionmgr.connections", listener.total, "type=total")
    yield Stat("connectionmgr.exceptions", listener.closed, "type=closed")
    yield Stat("connectionmgr.exceptions", listener.reset, "type=reset")
    yield Stat("connectionmgr.exceptions", listener.timed_out, "type=timeout")
    yield Stat("connectionmgr.exceptions", listener.failed, "type=unknown")
    yield Stat("rpc.received", snapshot.telnet_commands, "type=telnet")
    yield Stat("rpc.received", snapshot.web.requests, "type=http")
    yield Stat("rpc.exceptions", listener.failed + snapshot.web.failures + snapshot.task_failures)
    yield from _opentsdb_latencies("all", snapshot.web.latencies)
    yield from _opentsdb_latencies("graph", snapshot.web.graph_latencies)
    for protocol in ("telnet", "http"):
        yield Stat("rpc.forbidden", snapshot.access.forbidden[protocol], f"type={protocol}")
        yield Stat("rpc.unauthorized", snapshot.access.unauthorized[protocol], f"type={protocol}")
    yield Stat("rpc.received", snapshot.web.puts, "type=put")  # over HTTP only, as in OpenTSDB
    yield Stat("rpc.errors", 0, "type=hbase_errors")  # lines wait in the journal while the store fails
    for reason in (INVALID_VALUE, ILLEGAL_ARGUMENT, UNKNOWN_NAME):
        yield Stat("rpc.errors", snapshot.refused.get(reason, 0), f"type={reason}")
    yield Stat("rpc.errors", snapshot.coalesced_errors, "type=socket_writes_blocked")
    for outcome, count in snapshot.web.queries.items():
        yield Stat(f"http.query.{outcome}", count)


def _opentsdb_latencies(kind: str, latencies: RecentLatencies) -> Iterator[Stat]:
    percentiles = latencies.percentiles()
    for rank in PERCENTILES:
        yield Stat(f"http.latency_{rank}pct", percentiles[rank], f"type={kind}")


def _ledger(snapshot: DaemonStats) -> Iterator[Stat]:
    yield Stat("ledger.received", snapshot.received)
    yield Stat("ledger.stored", snapshot.stored)
    yield Stat("ledger.journaled", snapshot.journaled)
    for reason in REASONS:
        yield Stat("ledger.refused", snapshot.refused.get(reason, 0), f"reason={reason}")
    balance = snapshot.received - snapshot.stored - snapshot.journaled - sum(snapshot.refused.values())
    yield Stat("ledger.balance", balance)
    yield Stat("telnet.truncated-lines", snapshot.truncated_lines)
    yield Stat("ingest.backpressure", int(snapshot.backpressure))
    yield Stat("http.client-disconnects", snapshot.web.client_disconnects)
    for status, count in sorted(snapshot.web.errors.items()):
        yield Stat("http.errors", count, f"status={status}")
    if snapshot.tls is not None and snapshot.tls.plain_http:
        yield Stat("http.errors", snapshot.tls.plain_http, "status=426")
    yield Stat("http.body-bytes", snapshot.web.body_bytes)


def _clients(snapshot: DaemonStats) -> Iterator[Stat]:
    yield Stat("clients.known", snapshot.clients.known)
    yield Stat("clients.throttled", snapshot.clients.connections_throttled)
    yield Stat("clients.throttled-ms", snapshot.clients.throttled_ms)
    yield Stat("clients.names-over-pace", snapshot.clients.names_over_pace)
    yield Stat("clients.closed", snapshot.listener.over_address_limit, "reason=address")
    yield Stat("clients.closed", snapshot.listener.slow, "reason=line-timeout")
    yield Stat("clients.closed", snapshot.listener.unauthenticated, "reason=unauthenticated")
    yield Stat("clients.closed", snapshot.listener.over_partial_input_limit, "reason=partial-input")
    yield Stat("clients.closed", snapshot.listener.missing_proxy_header, "reason=missing-proxy-header")
    yield Stat("clients.closed", snapshot.web.not_http, "reason=not-http")
    yield Stat("clients.partial-input-bytes", snapshot.listener.partial_input_bytes)
    yield Stat("rejected.kept", snapshot.rejected.kept)
    yield Stat("rejected.dropped", snapshot.rejected.dropped)
    yield Stat("rejected.bytes", snapshot.rejected.size)
    yield Stat("rejected.failures", snapshot.rejected.failures)


def _access(access: AuthStatistics, tls: TlsStatistics | None) -> Iterator[Stat]:
    for protocol in ("telnet", "http"):
        yield Stat("authentication.succeeded", access.succeeded[protocol], f"type={protocol}", "plugin=authentication")
        yield Stat("authentication.denied", access.denied[protocol], f"type={protocol}", "plugin=authentication")
    yield Stat("auth.accounts", access.accounts)
    yield Stat("auth.network-rejections", access.outside)
    if tls is not None:
        yield Stat("tls.handshakes", tls.handshakes, "result=done")
        yield Stat("tls.handshakes", tls.failed, "result=failed")
        yield Stat("tls.handshakes", tls.late, "result=late")
        yield Stat("tls.plain-refused", tls.plain)
        yield Stat("tls.certificate-seconds-left", tls.seconds_left)


def resident_bytes() -> int:
    """Return the resident memory of this process. Raise OSError."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _storage(snapshot: DaemonStats) -> Iterator[Stat]:
    journal = snapshot.journal
    yield Stat("journal.bytes", journal.size)
    yield Stat("journal.segments", journal.segments)
    yield Stat("journal.pending-bytes", journal.pending)
    yield Stat("journal.syncs", journal.syncs)
    yield Stat("journal.failures", journal.failures)
    yield Stat("journal.quarantined", journal.quarantined)
    yield Stat("writer.windows", snapshot.windows)
    yield Stat("writer.held-points", snapshot.held_points)
    yield Stat("writer.early-releases", snapshot.early_releases)
    yield Stat("writer.cells", snapshot.cells)
    yield Stat("writer.retries", snapshot.write_retries)
    yield Stat("series.known", snapshot.series)
    yield Stat("process.compiled", int(HAS_LOOP))  # 0: Python parses put lines
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield Stat("process.started", snapshot.started_s)
    yield Stat("process.cpu-ms", int((usage.ru_utime + usage.ru_stime) * 1000))
    yield Stat("process.peak-kib", usage.ru_maxrss)
    with suppress(OSError):  # some sandboxes have no /proc
        yield Stat("process.resident-kib", resident_bytes() // 1024)
    yield from (stat for stat in snapshot.tables if not stat.name.startswith(("uid.", "compaction.")))
    for name, value in snapshot.store.items():
        yield Stat(f"store.{name}", value)
    yield Stat("query.warnings", snapshot.query_warnings)
    for name, value in snapshot.query_cache.items():
        yield Stat(f"query.cache.{name}", value)
    if (canary := snapshot.canary) is not None:
        yield Stat("canary.rounds", canary.rounds)
        yield Stat("canary.missed", canary.missed)
        yield Stat("canary.latency-ms", canary.latency_ms)


def routes(
    statistics: Callable[[], Sequence[Stat]],
    tags: Callable[[], str],
    now_ms: Callable[[], int],
    gateways: Callable[[], Sequence[Mapping[str, Any]]],
) -> dict[str, Endpoint]:
    """/api/stats and /stats. `tags` are the tags of all lines; `gateways` has the statistics of each server of the
    store. /api/stats/query is in `tsd.api.query`."""

    async def api(request: Request) -> Response:
        check_method(request, "GET", "POST")
        what = request.segments[1].lower() if len(request.segments) > 1 else ""
        if what == "region_clients":
            return answer(gateways())
        if what == "threads":
            return answer(_threads())
        if what == "jvm":
            return answer(_process(now_ms()))
        return answer(as_points(statistics(), now_ms() // 1000, tags()))

    async def text(request: Request) -> Response:
        check_method(request, "GET", "POST")
        lines = render(statistics(), now_ms() // 1000, tags())
        if request.has("json"):
            return answer(lines.decode().splitlines())
        return Response(200, lines, TEXT)

    return {"api/stats": api, "stats": text}


def _threads() -> list[dict[str, object]]:
    """Return the threads of the process, each with its stack."""
    frames = sys._current_frames()
    found: list[dict[str, object]] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        stack: list[str] = []
        while frame is not None:
            stack.append(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}({frame.f_lineno})")
            frame = frame.f_back
        state = "RUNNABLE" if thread.is_alive() else "TERMINATED"
        found.append(
            {
                "threadID": thread.ident,
                "name": thread.name,
                "state": state,
                "interrupted": False,
                "priority": 5,
                "stack": stack,
            }
        )
    return found


def _process(now_ms: int) -> dict[str, object]:
    """Return OpenTSDB's statistics of its Java machine, as far as they apply to a Python process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "memory": {"heapMemoryUsage": {"max": usage.ru_maxrss << 10}},
        "os": {"systemLoadAverage": _load()},
        "runtime": {
            "name": platform.python_implementation(),
            "vmVersion": platform.python_version(),
            "vmVendor": platform.python_compiler(),
            "cpuTime": int((usage.ru_utime + usage.ru_stime) * 1000),
            "time": now_ms,
        },
        "pools": {},
        "gc": {},
    }


def _load() -> float:
    with open("/proc/loadavg") as file:
        return float(file.read().split()[0])


SORTS = (
    "lines", "bytes", "accepted", "refused", "new_names", "new_series", "connections", "connections_total",
    "connections_refused", "paused_ms", "last_seen",
)  # fmt: skip


def rank_clients(clients: Iterable[Client], by: str, limit: int) -> list[dict[str, Any]]:
    """Return the clients with the greatest value of a field, greatest first; a `limit` of 0 means all. The sum of
    all others is last."""
    found = [client.as_json() for client in clients]
    others = [one for one in found if one["client"] == OTHERS]
    named = sorted((one for one in found if one["client"] != OTHERS), key=lambda one: (-one[by], one["client"]))
    return (named[:limit] if limit else named) + others


def client_routes(clients: Iterable[Client]) -> dict[str, Endpoint]:
    """/api/stats/clients?sort=lines&limit=100."""

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET")
        by = request.param("sort") or "lines"
        if by not in SORTS:
            raise Refused(400, f"Cannot sort by {by!r}", f"Sort by one of {', '.join(SORTS)}")
        return answer(rank_clients(clients, by, limit_in(request.param("limit") or "100")))

    return {"api/stats/clients": endpoint}


MAX_GROUPS = 100  # of refused lines


def rejected_routes(folder: Path, flush: Callable[[], Awaitable[None]]) -> dict[str, Endpoint]:
    """Return the endpoint. `folder` is the state folder; `flush` writes buffered records to the log."""

    async def rejected(request: Request) -> Response:
        check_method(request, "GET")
        await flush()
        return answer(await trio.to_thread.run_sync(_rejected_groups, folder))

    return {"api/stats/rejected": rejected}


def _rejected_groups(folder: Path) -> list[dict[str, object]]:
    """Return the largest groups of refused lines that were not accepted since."""
    wanted = RejectedFilter()
    entries = (entry for entry in read_entries(folder / "rejected", folder / "refused") if wanted.has(entry))
    return [group._asdict() for group in islice(groups(entries), MAX_GROUPS)]

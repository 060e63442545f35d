"""The parts' numbers → the lines of the telnet command `stats`: OpenTSDB's names where it has them, ours beside them.

Ours: `tsd.ledger.*` is the account of every put line (received = stored + journaled + refused), `tsd.journal.*`,
`tsd.writer.*`, `tsd.series.*`, `tsd.store.*` what the way to the store is doing, `tsd.compactor.*` what it leaves.
"""

import resource
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tsd.access.doorkeeper import Statistics as AccessStatistics
from tsd.canary import Statistics as CanaryStatistics
from tsd.codec.uid import Kind
from tsd.compaction.pace import Statistics as CompactionStatistics
from tsd.compaction.tally import Tally
from tsd.deadletters.log import Statistics as LettersStatistics
from tsd.doors.clients import Statistics as ClientsStatistics
from tsd.doors.latency import PERCENTILES, Latencies
from tsd.doors.listener import Statistics as ListenerStatistics
from tsd.doors.tally import Statistics as WebStatistics
from tsd.doors.tls import Statistics as TlsStatistics
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, REASONS, UNKNOWN_NAME
from tsd.ingest import compiled
from tsd.ingest.journal import Statistics as JournalStatistics
from tsd.uid_flight import KindStatistics


class Stat(NamedTuple):
    """One line: `name` without its prefix, a whole number, and its own tag."""

    name: str
    value: int
    tag: str = ""
    last_tag: str = ""  # behind the host's


class Snapshot(NamedTuple):
    """Everything that is reported, at one moment."""

    listener: ListenerStatistics
    telnet_commands: int
    web: WebStatistics
    cut_lines: int
    summed_up: int
    replayed: int
    accepted: int
    received: int
    stored: int
    journaled: int
    refused: Mapping[str, int]
    journal: JournalStatistics
    held: bool
    windows: int
    cells: int
    write_retries: int
    series: int
    uids: Mapping[Kind, KindStatistics]
    compaction: CompactionStatistics | None  # None: switched off
    store: Mapping[str, int]
    remembered: Mapping[str, int]  # hours, of queries
    query_warnings: int
    clients: ClientsStatistics
    letters: LettersStatistics
    access: AccessStatistics
    tls: TlsStatistics | None  # None: no TLS
    canary: CanaryStatistics | None  # None: there is none
    upkeep_failures: int
    started_s: int  # by the wall clock


def render(stats: Iterable[Stat], now_s: int, host_tags: str) -> bytes:
    """The reply of `stats`.

    >>> render([Stat("rpc.received", 3, "type=telnet")], 1700000000, "host=a")
    b'tsd.rpc.received 1700000000 3 type=telnet host=a\\n'
    """
    lines = ((f"tsd.{s.name}", f"{now_s}", f"{s.value}", s.tag, host_tags, s.last_tag) for s in stats)
    return "".join(" ".join(filter(None, words)) + "\n" for words in lines).encode()


def as_points(stats: Iterable[Stat], now_s: int, host_tags: str) -> list[dict[str, Any]]:
    """The answer of /api/stats: one data point each, its value a text.

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


def collect(snapshot: Snapshot) -> Iterator[Stat]:
    """The lines of a snapshot, OpenTSDB's first and in its order."""
    yield from _opentsdb_connections(snapshot)
    for kind, uids in snapshot.uids.items():
        yield from _opentsdb_uids(kind, uids)
    yield Stat("datapoints.added", snapshot.accepted, "type=all", "class=TSDB")
    yield from _opentsdb_compaction(snapshot.compaction)
    yield from _ledger(snapshot)
    yield from _clients(snapshot)
    yield from _access(snapshot.access, snapshot.tls)
    yield from _way_to_the_store(snapshot)


def _opentsdb_connections(snapshot: Snapshot) -> Iterator[Stat]:
    listener = snapshot.listener
    yield Stat("connectionmgr.connections", listener.open, "type=open")
    yield Stat("connectionmgr.connections", listener.rejected, "type=rejected")
    yield Stat("connectionmgr.connections", listener.total, "type=total")
    yield Stat("connectionmgr.exceptions", listener.closed, "type=closed")
    yield Stat("connectionmgr.exceptions", listener.reset, "type=reset")
    yield Stat("connectionmgr.exceptions", listener.silent, "type=timeout")
    yield Stat("connectionmgr.exceptions", listener.failed, "type=unknown")
    put_lines = snapshot.received - snapshot.replayed  # the others were received by an earlier run
    yield Stat("rpc.received", snapshot.telnet_commands + put_lines, "type=telnet")
    yield Stat("rpc.received", snapshot.web.requests, "type=http")
    yield Stat("rpc.exceptions", listener.failed + snapshot.web.failures + snapshot.upkeep_failures)
    yield from _opentsdb_latencies("all", snapshot.web.latencies)
    yield from _opentsdb_latencies("graph", snapshot.web.graph_latencies)
    for door in ("telnet", "http"):
        yield Stat("rpc.forbidden", snapshot.access.forbidden[door], f"type={door}")
        yield Stat("rpc.unauthorized", snapshot.access.unauthorized[door], f"type={door}")
    yield Stat("rpc.received", snapshot.web.puts, "type=put")  # over HTTP only, as in OpenTSDB
    yield Stat("rpc.errors", 0, "type=hbase_errors")  # the journal takes what the store does not
    for reason in (INVALID_VALUE, ILLEGAL_ARGUMENT, UNKNOWN_NAME):
        yield Stat("rpc.errors", snapshot.refused.get(reason, 0), f"type={reason}")
    yield Stat("rpc.errors", snapshot.summed_up, "type=socket_writes_blocked")
    for outcome, count in snapshot.web.queries.items():
        yield Stat(f"http.query.{outcome}", count)


def _opentsdb_latencies(kind: str, latencies: Latencies) -> Iterator[Stat]:
    percentiles = latencies.percentiles()
    for rank in PERCENTILES:
        yield Stat(f"http.latency_{rank}pct", percentiles[rank], f"type={kind}")


def _opentsdb_uids(kind: Kind, uids: KindStatistics) -> Iterator[Stat]:
    tag = f"kind={kind.value}"
    yield Stat("uid.cache-hit", uids.hits, tag)
    yield Stat("uid.cache-miss", uids.misses, tag)
    yield Stat("uid.cache-size", uids.cached, tag)
    yield Stat("uid.random-collisions", uids.collisions, tag)
    yield Stat("uid.rejected-assignments", uids.refused, tag)
    yield Stat("uid.ids-used", uids.used, tag)
    yield Stat("uid.ids-available", uids.available, tag)


def _opentsdb_compaction(compaction: CompactionStatistics | None) -> Iterator[Stat]:
    tally = Tally() if compaction is None else compaction.tally
    yield Stat("compaction.count", tally.compacted)
    yield Stat("compaction.duplicates", tally.identical, "type=identical")
    yield Stat("compaction.duplicates", tally.variant, "type=variant")
    if compaction is None:
        return
    yield Stat("compaction.queue.size", compaction.queued)
    for call in ("read", "put", "delete"):
        yield Stat("compaction.errors", tally.errors[call], f"rpc={call}")
    yield Stat("compaction.writes", tally.writes)
    yield Stat("compaction.deletes", tally.deletes)


def _ledger(snapshot: Snapshot) -> Iterator[Stat]:
    yield Stat("ledger.received", snapshot.received)
    yield Stat("ledger.stored", snapshot.stored)
    yield Stat("ledger.journaled", snapshot.journaled)
    for reason in REASONS:
        yield Stat("ledger.refused", snapshot.refused.get(reason, 0), f"reason={reason}")
    nowhere = snapshot.received - snapshot.stored - snapshot.journaled - sum(snapshot.refused.values())
    yield Stat("ledger.balance", nowhere)
    yield Stat("telnet.cut-lines", snapshot.cut_lines)
    yield Stat("intake.stopped", int(snapshot.held))
    yield Stat("http.hung-up", snapshot.web.hung_up)
    yield Stat("http.body-bytes", snapshot.web.body_bytes)


def _clients(snapshot: Snapshot) -> Iterator[Stat]:
    yield Stat("clients.known", snapshot.clients.known)
    yield Stat("clients.pausing", snapshot.clients.pausing)
    yield Stat("clients.paused-ms", snapshot.clients.paused_ms)
    yield Stat("clients.closed", snapshot.listener.crowded, "reason=address")
    yield Stat("clients.closed", snapshot.listener.slow, "reason=line")
    yield Stat("clients.closed", snapshot.listener.strangers, "reason=stranger")
    yield Stat("clients.closed", snapshot.listener.cut_off, "reason=unfinished")
    yield Stat("clients.closed", snapshot.listener.unannounced, "reason=no_proxy_header")
    yield Stat("clients.unfinished-bytes", snapshot.listener.unfinished)
    yield Stat("rejected.kept", snapshot.letters.kept)
    yield Stat("rejected.left-out", snapshot.letters.left_out)
    yield Stat("rejected.bytes", snapshot.letters.size)
    yield Stat("rejected.failures", snapshot.letters.failures)


def _access(access: AccessStatistics, tls: TlsStatistics | None) -> Iterator[Stat]:
    for door in ("telnet", "http"):
        yield Stat("authentication.succeeded", access.succeeded[door], f"type={door}", "plugin=authentication")
        yield Stat("authentication.denied", access.denied[door], f"type={door}", "plugin=authentication")
    yield Stat("access.accounts", access.accounts)
    yield Stat("access.outside-networks", access.outside)
    if tls is not None:
        yield Stat("tls.handshakes", tls.handshakes, "result=done")
        yield Stat("tls.handshakes", tls.failed, "result=failed")
        yield Stat("tls.handshakes", tls.late, "result=late")
        yield Stat("tls.plain-refused", tls.plain)
        yield Stat("tls.certificate-seconds-left", tls.seconds_left)


def _resident_kib() -> int:
    """Memory of this process that is resident. Raises OSError."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def _way_to_the_store(snapshot: Snapshot) -> Iterator[Stat]:
    journal = snapshot.journal
    yield Stat("journal.bytes", journal.size)
    yield Stat("journal.segments", journal.segments)
    yield Stat("journal.pending-bytes", journal.pending)
    yield Stat("journal.syncs", journal.syncs)
    yield Stat("journal.failures", journal.failures)
    yield Stat("journal.set-aside", journal.aside)
    yield Stat("writer.windows", snapshot.windows)
    yield Stat("writer.cells", snapshot.cells)
    yield Stat("writer.retries", snapshot.write_retries)
    yield Stat("series.known", snapshot.series)
    yield Stat("process.compiled", int(compiled.HAS))  # 0: put lines are read in Python
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield Stat("process.started", snapshot.started_s)
    yield Stat("process.cpu-ms", int((usage.ru_utime + usage.ru_stime) * 1000))
    yield Stat("process.peak-kib", usage.ru_maxrss)
    with suppress(OSError):  # some jails have no /proc
        yield Stat("process.resident-kib", _resident_kib())
    if snapshot.compaction is not None:
        tally = snapshot.compaction.tally
        yield Stat("compactor.queue-full", snapshot.compaction.left_out)
        yield Stat("compactor.rows-left", tally.corrupt + tally.undecided, "type=corrupt")
        yield Stat("compactor.rows-left", tally.hidden, "type=hidden")
    for name, value in snapshot.store.items():
        yield Stat(f"store.{name}", value)
    yield Stat("query.warnings", snapshot.query_warnings)
    for name, value in snapshot.remembered.items():
        yield Stat(f"query.remembered.{name}", value)
    if (canary := snapshot.canary) is not None:
        yield Stat("canary.rounds", canary.rounds)
        yield Stat("canary.missed", canary.missed)
        yield Stat("canary.latency-ms", canary.latency_ms)

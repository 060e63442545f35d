"""/metrics: the numbers of `stats` in the text format that Prometheus reads."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tsd.api.messages import check_method
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.doors.latency import Latencies
from tsd.stats import Stat

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OTHER = re.compile("[^a-zA-Z0-9_]")

# What goes up and down; everything else only goes up. By name, or by what names begin with.
GAUGES = (
    "compaction.queue.size",
    "compactor.rows-left",
    "http.body-bytes",
    "http.latency_",
    "intake.stopped",
    "journal.bytes",
    "journal.pending-bytes",
    "journal.segments",
    "ledger.journaled",
    "process.peak-kib",
    "series.known",
    "store.gateways_down",
    "uid.cache-size",
    "uid.ids-",
)
GAUGE_TAGS = ("type=open",)


def routes(statistics: Callable[[], Sequence[Stat]], latencies: Mapping[str, Latencies]) -> dict[str, Endpoint]:
    """`latencies` are those of HTTP requests, by kind."""

    async def metrics(request: Request) -> Response:
        check_method(request, "GET", "HEAD")
        return Response(200, (exposition(statistics()) + _durations(latencies)).encode(), TYPE)

    return {"metrics": metrics}


def exposition(stats: Iterable[Stat]) -> str:
    """The text: each name once, with its type, and all of its values behind.

    >>> stats = [Stat("rpc.received", 3, "type=http"), Stat("a", 1), Stat("rpc.received", 4, "type=put")]
    >>> print(exposition(stats), end="")
    # TYPE tsd_rpc_received_total counter
    tsd_rpc_received_total{type="http"} 3
    tsd_rpc_received_total{type="put"} 4
    # TYPE tsd_a_total counter
    tsd_a_total 1
    """
    found: dict[tuple[str, str], list[str]] = {}
    for stat in stats:
        is_gauge = stat.name.startswith(GAUGES) or stat.tag in GAUGE_TAGS
        name = "tsd_" + _OTHER.sub("_", stat.name) + ("" if is_gauge else "_total")
        tags = [tag.split("=", 1) for tag in (stat.tag, stat.last_tag) if tag]
        labels = ",".join(f'{_OTHER.sub("_", key)}="{_escaped(value)}"' for key, value in tags)
        line = f"{name}{{{labels}}} {stat.value}\n" if labels else f"{name} {stat.value}\n"
        found.setdefault((name, "gauge" if is_gauge else "counter"), []).append(line)
    return "".join(f"# TYPE {name} {kind}\n{''.join(lines)}" for (name, kind), lines in found.items())


def _durations(latencies: Mapping[str, Latencies]) -> str:
    name = "tsd_http_request_duration_seconds"
    lines = "".join(
        f'{name}_sum{{type="{kind}"}} {found.total_ms / 1000}\n{name}_count{{type="{kind}"}} {found.count}\n'
        for kind, found in latencies.items()
    )
    return f"# TYPE {name} summary\n{lines}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

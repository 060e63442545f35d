"""Debian's VictoriaMetrics with its OpenTSDB listeners."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.comparison.mixes import Sums
from bench.comparison.systems import Answer, Needs, Question, answer_of
from bench.lines import ROUND_S
from bench.process_usage import Usage
from bench.victoria import Victoria as Peer
from bench.victoria import running_victoria as running_peer

SHOWN_S = 60  # until a query finds flushed points


class Victoria:
    """A running VictoriaMetrics. It acknowledges no lines, and keeps points in memory for about one second."""

    last = ""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._points = 0
        self.port, self.http_port = peer.port, peer.http_port

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return self._peer.usage()

    def store_cpu_s(self) -> float:
        """Return 0: it has no other processes."""
        return 0.0

    def await_stored(self, points: int) -> float:
        """Wait until its listeners have received the points, then make it flush."""
        self._points = points
        return self._peer.await_stored(points)

    def found(self, start_s: int, end_s: int) -> Sums:
        """Read the points of a time range."""
        count, total = (self._peer.over_time(of, start_s, end_s) for of in ("count", "sum"))
        return Sums(round(count), total)

    def query(self, question: Question) -> Answer:
        """Run a query. Its windows end where those of other systems begin."""
        host = f',host="{question.host}"' if question.host else ""
        selector = f'{{__name__="{question.metric}"{host}}}'
        if question.host:
            times = {"time": question.end_s - 1}
            found = self._peer.query("query", {"query": f"{selector}[{question.end_s - question.start_s}s]", **times})
        else:
            step_s = question.step_s or ROUND_S
            expression = f"avg_over_time({selector}[{step_s}s])" if question.step_s else f"sum({selector})"
            span = {"start": question.start_s + step_s - ROUND_S, "end": question.end_s - ROUND_S, "step": step_s}
            found = self._peer.query("query_range", {"query": expression, **span, "nocache": 1})
        return answer_of({one["metric"].get("host", ""): [float(value) for _, value in one["values"]] for one in found})

    def merged_bytes(self) -> int:
        """Return the size of its merged parts without the index of series."""
        return self._peer.merged_bytes(self._points)


@contextmanager
def running_victoria(home: Path, needs: Needs) -> Iterator[Victoria]:
    """Start VictoriaMetrics with its state in `home`, and stop it."""
    del needs
    with running_peer(home) as peer:
        yield Victoria(peer)

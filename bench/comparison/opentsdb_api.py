"""Queries in OpenTSDB's HTTP API, for the daemon and OpenTSDB."""

import json
import urllib.parse
import urllib.request

from bench.comparison.mixes import Sums
from bench.comparison.systems import Answer, Question, answer_of
from bench.lines import METRICS_A_HOST

PATIENCE_S = 600


def found(port: int, start_s: int, end_s: int) -> Sums:
    """Return number and sum of all points of the benchmark."""
    names = [f"bench.host.metric{number}" for number in range(METRICS_A_HOST)]
    known = {name for name in _get(port, "/api/suggest?type=metrics&max=1000&q=bench.host") if name in names}
    totals = [
        sum(value for m in sorted(known) for value in _values(port, start_s, end_s, f"sum:0all-{of}:{m}"))
        for of in ("count", "sum")
    ]
    return Sums(round(totals[0]), totals[1])


def query(port: int, question: Question) -> Answer:
    """Run a query."""
    tags = f"{{host={question.host}}}" if question.host else "{host=*}" if question.step_s else ""
    down = f"{question.step_s}s-avg:" if question.step_s else ""
    m = f"sum:{down}{question.metric}{tags}"
    groups = _query(port, question.start_s, question.end_s, m)
    return answer_of({str(group["tags"].get("host", "")): list(group["dps"].values()) for group in groups})


def _values(port: int, start_s: int, end_s: int, m: str) -> list[float]:
    return [value for group in _query(port, start_s, end_s, m) for value in group["dps"].values()]


def _query(port: int, start_s: int, end_s: int, m: str) -> list[dict[str, dict[str, float]]]:
    words = urllib.parse.urlencode({"start": start_s, "end": end_s - 1, "m": m})
    answer: list[dict[str, dict[str, float]]] = _get(port, f"/api/query?{words}")
    return answer


def _get(port: int, path: str) -> list:  # type: ignore[type-arg]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        found: list = json.load(answer)  # type: ignore[type-arg]
        return found

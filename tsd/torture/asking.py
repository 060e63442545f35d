"""The same points by /api/query: what is answered must be what is stored, each time once."""

import http.client
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import trio

from tsd.torture.lines import BASE_S, Series, spelt
from tsd.torture.process import PATIENCE_S
from tsd.torture.reading import StoredRow
from tsd.torture.senders import AGAIN_S, HOST, Unexpected
from tsd.torture.verdict import Finding, finding

END_S = 1 << 32  # behind all that is sent: where ms begin
MOST_METRICS = 200  # of one request
STORE_AWAY = (
    424  # a slow HBase has not answered in the short time that is set here: that is no answer, and no wrong one
)

Points = Counter[tuple[Series, int, float]]  # a point's time in ms, and how often it was seen


class Asked:
    """Points that rows hold, to be found in answers."""

    def __init__(self) -> None:
        self._stored: Points = Counter()

    def take(self, row: StoredRow) -> None:
        """Enter one row's points."""
        times = (time * 1000 if time < END_S else time for time in row.times.tolist())
        self._stored.update((row.series, time, value) for time, value in zip(times, row.values.tolist(), strict=True))

    async def compare(self, port: int, metrics: Sequence[str]) -> tuple[Finding, Finding, Finding]:
        """What is stored and not answered, answered and not stored, and answered twice. Raises Unexpected."""
        answered: Points = Counter()
        for at in range(0, len(metrics), MOST_METRICS):
            answered.update(await _answer(port, metrics[at : at + MOST_METRICS]))
        places = Counter((series, time) for series, time, _ in answered.elements())
        return (
            finding(_told(self._stored.keys() - answered.keys())),
            finding(_told(answered.keys() - self._stored.keys())),
            finding(f"{series.metric} {time} {spelt(series.tags)}" for (series, time), n in places.items() if n > 1),
        )


def _told(points: Iterable[tuple[Series, int, float]]) -> Iterator[str]:
    return (f"/api/query: {series.metric} {time} {value} {spelt(series.tags)}" for series, time, value in points)


async def _answer(port: int, metrics: Sequence[str]) -> Points:
    queries = [{"aggregator": "none", "metric": metric} for metric in metrics]
    asked = {"start": BASE_S - 3600, "end": END_S - 1, "msResolution": True, "queries": queries}
    post = partial(_post, port, json.dumps(asked))
    status, answer = 0, cast(Any, "nothing")
    with trio.move_on_after(PATIENCE_S):
        while True:
            status, answer = await trio.to_thread.run_sync(post, abandon_on_cancel=True)
            if status != STORE_AWAY:
                break
            await trio.sleep(AGAIN_S)
    if status != 200:
        raise Unexpected(f"/api/query was answered with {status}: {str(answer)[:300]}")
    found: Points = Counter()
    for one in answer:
        series = Series(one["metric"], tuple(sorted(one["tags"].items())))
        found.update((series, time, float(value)) for time, value in one["dps"])
    return found


def _post(port: int, body: str) -> tuple[int, Any]:
    """Status and answer. Raises Unexpected."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/api/query?arrays", body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except OSError as exc:
        raise Unexpected(f"/api/query was not answered: {exc}") from exc
    finally:
        connection.close()

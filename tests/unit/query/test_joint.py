"""Sub queries of one query that read the rows of events together: the answers are those of single queries."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.unit.tables.interned_layout import Lookup
from tsd.codec.points import Columns
from tsd.codec.tall.rules import parse_rules
from tsd.errors import BadQuery
from tsd.query.engine import EngineSettings, QueryEngine, QueryJob
from tsd.query.kairosdb.answer import MetricAnswer, write_answer
from tsd.query.kairosdb.model import KairosQuery
from tsd.query.kairosdb.reading import answer_metrics, answer_tags
from tsd.query.kairosdb.request import read_request
from tsd.query.limits import Bounds, Limits
from tsd.query.parse.uri import read_uri
from tsd.query.result import Answer
from tsd.store.memory import MemoryStore
from tsd.tables.tall.layout import TallTableSettings, build, tall_tables
from tsd.tables.writing import SeriesText

RULES = parse_rules("SENSOR {meter:010=ID}#{day} meter.kwh; METRIC {host}#{ts} *")
START_S = 1_356_998_400
METRICS, HOSTS, TIMES = 30, 3, 50
Reads = Callable[[KairosQuery, QueryJob], Awaitable[list[MetricAnswer]]]
ALL = "&".join(f"m=sum:m{number:02d}{{host=h1}}" for number in range(METRICS))


async def points_of(wanted: KairosQuery, job: QueryJob) -> list[MetricAnswer]:
    return await answer_metrics(wanted, job, START_S * 1000 + 10**9)


class Engine:
    """A query engine on rows of events in memory."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.store = MemoryStore(lambda: START_S * 1000)
        self.tables = build(self.store, TallTableSettings(RULES, "listed", True), lambda: START_S * 1000)
        self.engine = QueryEngine(
            self.tables.reader,
            settings=settings or EngineSettings(),
            flush=self._flush,
            now_ms=lambda: (START_S + 10**6) * 1000,
        )

    async def _flush(self, _metric: bytes) -> bool:
        return True

    async def fill(self) -> None:
        """Put points of each metric and host."""
        await self.store.create_tables(tall_tables(RULES, "listed"))
        texts = [
            SeriesText(b"m%02d" % metric, b"host=h%d" % host) for metric in range(METRICS) for host in range(HOSTS)
        ]
        resolved = await self.tables.resolver.resolve(texts)
        series = np.repeat(np.arange(len(texts), dtype=np.int32), TIMES)
        times = np.tile(np.arange(TIMES, dtype=np.int64) * 5 + START_S, len(texts)) * 1000
        values = np.arange(len(series), dtype=np.int64)
        columns = Columns(series, times << 1 | 1, np.full(len(series), 7, np.uint8), values)
        await self.tables.writer.write(columns, Lookup(list(resolved.keys)))

    async def ask(self, words: str, *, end_s: int = START_S + 3599) -> Answer:
        """Return the answer to a query."""
        params = {"start": [str(START_S)], "end": [str(end_s)], "m": [one[2:] for one in words.split("&")]}
        return await self.engine.run(read_uri(params, 0))

    async def kairosdb(self, metrics: Sequence[Mapping[str, object]], read: Reads) -> list[MetricAnswer]:
        """Return the answer to a request of KairosDB."""
        times = {"start_absolute": START_S * 1000, "end_absolute": (START_S + 3599) * 1000}
        request = read_request(json.dumps({**times, "metrics": metrics}), 0)
        return await self.engine.work(partial(read, request))

    async def shown(self, words: str) -> list[Any]:
        """Return the groups of each sub answer: tags, times and values."""
        answer = await self.ask(words)
        return [
            [
                (group.metric, group.tags, group.points.times.tolist(), group.points.bits.tolist())
                for group in sub.groups
            ]
            for sub in answer.subs
        ]


async def test_answers_are_those_of_single_queries_and_each_row_is_read_once() -> None:
    env = Engine()
    await env.fill()
    words = [
        *ALL.split("&"),
        "m=max:m03{host=h1}",  # the same metric again
        "m=sum:m04{host=*}",
        "m=none:m05",
        "m=sum:1m-avg:m06{host=h2}",
        "m=sum:m07{host=absent}",
    ]
    single = [await env.shown(one) for one in words]
    assert sum(len(groups) for [groups] in single) == METRICS + 1 + HOSTS + HOSTS + 1
    assert await env.shown("&".join(words)) == [groups for [groups] in single]
    before = env.store.statistics()["page"]
    await env.ask(ALL)
    pages = env.store.statistics()["page"] - before
    assert pages <= METRICS + 5  # one of the index for each metric, and the rows once
    assert len({len(sub.groups[0].points.times) for sub in (await env.ask(ALL)).subs}) == 1


async def test_kairosdb_requests_read_each_row_once() -> None:
    env = Engine()
    await env.fill()
    names = [f"m{number:02d}" for number in range(METRICS)]
    metrics: list[dict[str, object]] = [
        *({"name": name, "tags": {"host": ["h1"]}} for name in names),
        {"name": "m03", "aggregators": [{"name": "sum", "sampling": {"value": 1, "unit": "minutes"}}]},
        {"name": "none"},
        {"name": "m04", "tags": {"host": ["absent"]}},
    ]
    for read, points in ((points_of, METRICS * TIMES + HOSTS * TIMES), (answer_tags, 0)):
        single = [answer for one in metrics for answer in await env.kairosdb([one], read)]
        before = env.store.statistics()["page"]
        found = await env.kairosdb(metrics, read)
        pages = env.store.statistics()["page"] - before
        assert [b"".join(write_answer([one])) for one in found] == [b"".join(write_answer([one])) for one in single]
        assert sum(answer.sample_size or 0 for answer in found) == points
        assert pages <= len(metrics) + 20  # those of the index for each metric, and the rows once


async def test_limits_and_unknown_names_are_those_of_each_sub_query() -> None:
    env = Engine(EngineSettings(Limits(Bounds(points=TIMES))))
    await env.fill()
    await env.ask(ALL)  # each is within its limit
    with pytest.raises(BadQuery, match="more than our limit of 50 data points"):
        await env.ask(f"{ALL}&m=sum:m01{{host=*}}")
    with pytest.raises(BadQuery, match="No such name for 'metrics': 'none'"):
        await env.ask(f"m=sum:none&m=sum:neither&{ALL}")
    other = Engine(EngineSettings(memory_bytes=20_000))
    await other.fill()
    await other.ask("m=sum:m01{host=h1}")
    with pytest.raises(BadQuery, match="more memory than all queries may hold"):
        await other.ask(ALL)
    assert env.engine.memory.held == other.engine.memory.held == 0

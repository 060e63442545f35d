"""Resolved requests are kept until names leave the caches of UIDs."""

import pytest

from tests.unit.query.engines import FEW, UID, QueryEnvironment, comparable
from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import id_column
from tsd.errors import BadQuery
from tsd.tables.filters import Filter, make_filter
from tsd.tables.opentsdb.selection import KEPT_REQUESTS, FilterResolver, FilterRules
from tsd.tables.reading import SeriesRequest

QUERY = "sum:sys.cpu{host=web07}"


async def test_a_repeated_query_is_resolved_again_after_its_names_left_the_caches() -> None:
    env = await QueryEnvironment.build(FEW)
    first = await env.run(QUERY)
    before = env.uids.statistics()
    assert comparable(await env.run(QUERY)) == comparable(first)
    hits = {kind: env.uids.statistics()[kind].hits - before[kind].hits for kind in Kind}
    assert hits == {Kind.METRIC: 1, Kind.TAGK: 3, Kind.TAGV: 3}  # two tags of the answer, too
    await env.store.delete(UID, {b"web07": [id_column(Kind.TAGV)]}, up_to_ms=None)
    assert comparable(await env.run(QUERY)) == comparable(first)
    env.uids.drop_caches()
    with pytest.raises(BadQuery, match="No such name for 'tagv': 'web07'"):
        await env.run(QUERY)


async def test_only_short_requests_whose_names_all_exist_are_kept() -> None:
    env = await QueryEnvironment.build(FEW)
    resolver = FilterResolver(env.uids, env.layout.widths, FilterRules(skip_unresolved_tagvs=True))
    request = SeriesRequest("sys.cpu", filters=(make_filter("host", "literal_or", "web07|later"),))
    assert len((await resolver.resolve(request)).conditions[0].literals or ()) == 1
    await env.put(["sys.cpu 1356998400 1 host=later"])
    assert len((await resolver.resolve(request)).conditions[0].literals or ()) == 2
    resolver = FilterResolver(env.uids, env.layout.widths, FilterRules())
    one = await resolver.resolve(request)
    assert await resolver.resolve(request) is one
    for at in range(KEPT_REQUESTS):
        await resolver.resolve(request._replace(counts_expiring=bool(at), filters=(_wildcard(f"*{at}"),)))
    assert await resolver.resolve(request) == one
    long = request._replace(filters=(_wildcard("*" + 300 * "a"),))
    assert await resolver.resolve(long) is not await resolver.resolve(long)


def _wildcard(text: str) -> Filter:
    return make_filter("host", "wildcard", text)

"""The pace of writes that Bigtable's service asks for."""

import math

import pytest
import trio

from tests.unit.store.bigtable_server import Answer, rate_limit, scripted, verdict
from tsd.daemon.settings import now_ms
from tsd.errors import StoreBusy
from tsd.store import Put
from tsd.store.bigtable.engine import BigtableStore
from tsd.store.bigtable.rate_limit import RateLimit, RateLimitInfo
from tsd.store.bigtable.session import Contact

LOWER, HIGHER = RateLimitInfo(10.0, 0.8), RateLimitInfo(10.0, 1.2)
PUTS = [Put(b"a", b"t:q", b"v")]


async def send(limit: RateLimit, count: int) -> float:
    """Send requests, and return how many seconds they took."""
    begin_s = trio.current_time()
    for _ in range(count):
        assert await limit.wait(60.0)
    return trio.current_time() - begin_s


async def ten_a_second() -> RateLimit:
    """Return the limit of a process that sends ten requests a second."""
    limit = RateLimit()
    for _ in range(200):
        await send(limit, 1)
        await trio.sleep(0.1)
    return limit


async def test_without_a_request_of_the_service_nothing_waits(autojump_clock: object) -> None:
    limit = await ten_a_second()
    limit.follow(HIGHER)
    assert await send(limit, 1000) == 0
    assert limit.per_s == math.inf


async def test_rate_follows_the_factors_once_a_period(autojump_clock: object) -> None:
    limit = await ten_a_second()
    for _ in range(5):
        limit.follow(LOWER)
    assert await send(limit, 80) == pytest.approx(10.0, rel=0.05)
    limit.follow(LOWER)
    assert await send(limit, 64) == pytest.approx(10.0, rel=0.05)
    limit.follow(HIGHER)
    assert await send(limit, 77) == pytest.approx(10.0, rel=0.05)


async def test_extreme_factor_changes_the_rate_little(autojump_clock: object) -> None:
    limit = await ten_a_second()
    limit.follow(RateLimitInfo(10.0, 0.0))
    assert 5 < limit.per_s < 10


async def test_limit_ends_when_the_service_asks_for_nothing(autojump_clock: object) -> None:
    limit = await ten_a_second()
    limit.follow(LOWER)
    await trio.sleep(3600)
    assert await send(limit, 100) == 0


async def test_wait_that_is_too_long_is_refused_at_once(autojump_clock: object) -> None:
    limit = await ten_a_second()
    for _ in range(60):
        limit.follow(LOWER)
        await trio.sleep(10.0)
    assert await limit.wait(1.0)
    begin_s = trio.current_time()
    assert not await limit.wait(1.0)
    assert trio.current_time() == begin_s


@pytest.mark.slow
async def test_put_obeys_the_answers_of_the_server() -> None:
    slower: Answer = [verdict(0), *(rate_limit(0.5) for _ in range(40))]
    with scripted(slower) as server:
        store = BigtableStore(Contact("p", "i", emulator=f"127.0.0.1:{server.port}", timeout_s=2.0), now_ms)
        try:
            await store.put("x", PUTS)
            with pytest.raises(StoreBusy, match="requests a second"):
                await store.put("x", PUTS)
        finally:
            await store.aclose()
    assert len(server.requests) == 1

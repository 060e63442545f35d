"""A few messages a minute about clients, whatever they do."""

import trio
from trio.testing import MockClock

from tsd.auth.log_limit import LogLimit

HOUR_S = 3600


async def test_each_address_is_logged_once_in_an_interval(autojump_clock: MockClock) -> None:
    limit = LogLimit(64)
    assert [limit.unlogged("10.0.0.1") for _ in range(4)] == [0, None, None, None]
    assert limit.unlogged("10.0.0.2") == 0
    await trio.sleep(HOUR_S)
    assert [limit.unlogged("10.0.0.1"), limit.unlogged("10.0.0.1")] == [3, None]


async def test_addresses_of_one_ipv6_prefix_are_one_client(autojump_clock: MockClock) -> None:
    limit = LogLimit(64)
    assert [limit.unlogged(f"2001:db8::{at}") for at in range(1, 4)] == [0, None, None]
    assert limit.unlogged("2001:db8:0:1::1") == 0


async def test_few_of_many_addresses_are_logged(autojump_clock: MockClock) -> None:
    limit, addresses = LogLimit(64), [f"10.0.{at // 256}.{at % 256}" for at in range(1000)]
    logged = sum(limit.unlogged(address) is not None for address in addresses)
    assert 0 < logged < len(addresses) / 10
    await trio.sleep(HOUR_S)
    assert limit.unlogged(addresses[-1]) == 1

"""Reads that Cassandra refuses because of too many deletes, on a server that counts them."""

import pytest

from tsd.store.cassandra.ranges import read_range
from tsd.store.cassandra.schema import statements
from tsd.store.cassandra.session import Parameters, TooManyTombstones
from tsd.store.cassandra.wire import RawRows, encode_value

CQL = statements("k", "t")
ALLOWED = 100


class Server:
    """Answers the keys of a range, unless more deletes than allowed are in it."""

    def __init__(self, keys: list[bytes], deletes: dict[bytes, int]) -> None:
        self.keys = keys
        self.deletes = deletes
        self.asked = 0

    async def ask(self, cql: str, parameters: Parameters) -> RawRows:
        self.asked += 1
        _, low, *end, limit = parameters
        high = end[0] if cql == CQL.between else None
        assert isinstance(low, bytes)
        assert isinstance(limit, int)
        assert high is None or isinstance(high, bytes)

        def within(key: bytes) -> bool:
            return key >= low and (high is None or key < high)

        if sum(count for key, count in self.deletes.items() if within(key)) > ALLOWED:
            raise TooManyTombstones("too many")
        found = [key for key in self.keys if within(key)][:limit]
        return RawRows(len(found), b"".join(map(encode_value, found)))


@pytest.mark.parametrize("part", [(b"", None), (b"\0\0", b"\0\7\0"), (b"\0\3", b"\0\3\1")])
@pytest.mark.parametrize("cells", [1, 7, 10_000])
async def test_refused_range_is_read_in_halves(part: tuple[bytes, bytes | None], cells: int) -> None:
    keys = [bytes([0, hour, 0, series]) for hour in range(9) for series in range(60)]
    server = Server(keys[::7], dict.fromkeys(keys, 9))
    found = await read_range(server.ask, CQL, b"p", part, cells)
    low, high = part
    wanted = [key for key in keys[::7] if key >= low and (high is None or key < high)][:cells]
    assert found == RawRows(len(wanted), b"".join(map(encode_value, wanted)))


async def test_row_with_too_many_deletes_is_an_error_after_a_bounded_number_of_requests() -> None:
    server = Server([], {bytes(12) + b"x": ALLOWED + 1})
    with pytest.raises(TooManyTombstones):
        await read_range(server.ask, CQL, b"p", (b"", None), 10)
    assert server.asked < 10_000

"""What a region server passes over must not be wanted."""

import re

import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.peers.hbase import RunningHbase
from tsd.codec.opentsdb.rowkey import row_pattern
from tsd.store import Family, Put, Table, cell_pages
from tsd.store.hbase.engine import HBaseStore

# Bytes that are characters, parts of characters, what lines end with, and what a filter's text is quoted with.
uids = st.lists(
    st.sampled_from(b"\x00\x01\x0a\x27\x5c\x7f\x80\xa9\xc3\xe2\x82\xac\xf0\x9f\xff"), min_size=3, max_size=3
)
pairs = st.tuples(uids, uids).map(lambda pair: bytes(pair[0] + pair[1]))


@given(st.lists(pairs, min_size=1, max_size=4), st.data())
def test_key_with_the_tags_matches(tags: list[bytes], data: st.DataObject) -> None:
    key = b"\0\0\1PQRS" + b"".join(sorted(tags))
    wanted = sorted(data.draw(st.lists(st.sampled_from(sorted(set(tags))), min_size=1, unique=True)))
    pattern = row_pattern([[tag, b"\1\2\3\4\5\6"] for tag in wanted])
    assert re.search(pattern, key.decode("utf-8", "replace"), re.DOTALL)


def test_key_with_another_tag_does_not_match() -> None:
    pattern = row_pattern([[bytes.fromhex("000001000002")], [bytes.fromhex("000002000007")]])
    key = bytes.fromhex("00000150e22700000001000002000002000007")
    assert re.search(pattern, key.decode("latin-1"), re.DOTALL)
    for other in ("000001000003000002000007", "000001000002000002000008", "000002000007"):
        assert not re.search(pattern, (key[:7] + bytes.fromhex(other)).decode("latin-1"), re.DOTALL)


async def test_region_server_applies_the_pattern(hbase: RunningHbase) -> None:
    """Bytes that are not text lose no wanted row, and other rows are filtered."""
    host, _, port = hbase.gateway.partition(":")
    store = HBaseStore([(host, int(port))])
    table = hbase.unused_tables().data
    await store.create_tables([Table(table, (Family(b"t"),))])
    keys = [b"\0\0\1PQRS" + bytes([0, 0, 1, 0, low, high]) + bytes([0, 0, 2, high, 0x80, 0xC3])
            for low in (0, 0x27, 0x80, 0xC3) for high in (1, 0x0A, 0x5C, 0x7F, 0x80, 0xA9, 0xC3, 0xFF)]  # fmt: skip
    await store.put(table, [Put(key, b"t:\0\0", b"1") for key in keys])
    passed_in_all = 0
    for key in keys:
        pattern = row_pattern([[key[7:13]], [key[13:19], bytes(6)]])
        passed = [
            found async for page in cell_pages(store, table, b"", None, key_pattern=pattern) for found in page.keys
        ]
        assert key in passed
        passed_in_all += len(passed)
    assert passed_in_all < len(keys) ** 2 / 2
    await store.aclose()
    await trio.lowlevel.checkpoint()

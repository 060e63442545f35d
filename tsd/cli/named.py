"""Row keys with the names of their UIDs, as commands show them."""

from collections.abc import Sequence
from typing import NamedTuple

from tsd.cli.access import Access
from tsd.codec.rowkey import SplitKey
from tsd.codec.uid import Kind
from tsd.store import Row


class NamedKey(NamedTuple):
    """A row key with its names."""

    key: bytes
    metric: str
    tags: list[str]  # tagk=tagv
    base: int


async def named(ways: Access, rows: Sequence[tuple[Row, SplitKey]]) -> list[NamedKey]:
    """The names of rows; a UID without name shows as its hex in angle brackets."""
    metrics = await ways.uids.names(Kind.METRIC, {key.series.metric for _, key in rows})
    tagks = await ways.uids.names(Kind.TAGK, {tagk for _, key in rows for tagk, _ in key.series.pairs})
    tagvs = await ways.uids.names(Kind.TAGV, {tagv for _, key in rows for _, tagv in key.series.pairs})

    def shown(names: object, uid: bytes) -> str:
        return names.decode("latin-1") if isinstance(names, bytes) else f"<{uid.hex()}>"

    return [
        NamedKey(
            row.key,
            shown(metrics[key.series.metric], key.series.metric),
            [f"{shown(tagks[k], k)}={shown(tagvs[v], v)}" for k, v in key.series.pairs],
            key.base,
        )
        for row, key in rows
    ]

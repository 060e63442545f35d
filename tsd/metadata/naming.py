"""Series by TSUIDs → the same in their users' words, with what is said of their names: what trees are grown from."""

from collections.abc import Sequence

from tsd.codec.tsuid import split_tsuid
from tsd.codec.uid import Kind, Widths
from tsd.metadata.described import UidMetas, named
from tsd.metadata.tree_rules import NamedSeries
from tsd.uids import Uids


async def named_series(uids: Uids, metas: UidMetas, widths: Widths, tsuid: bytes) -> NamedSeries:
    """A series in words; raises BadLine for what is no TSUID, NoSuchName, StoreError, CorruptRow."""
    series = split_tsuid(widths, tsuid)
    [metric] = await named(uids, metas, Kind.METRIC, [series.metric])
    tagks = await named(uids, metas, Kind.TAGK, [tagk for tagk, _ in series.pairs])
    tagvs = await named(uids, metas, Kind.TAGV, [tagv for _, tagv in series.pairs])
    names: Sequence[str] = [tagk.name for tagk in tagks]
    return NamedSeries(
        tsuid.hex().upper(),
        metric.name,
        [(tagk, tagv.name) for tagk, tagv in zip(names, tagvs, strict=True)],
        metric.meta.custom or {},
        {tagk: one.meta.custom or {} for tagk, one in zip(names, tagks, strict=True)},
        {tagk: one.meta.custom or {} for tagk, one in zip(names, tagvs, strict=True)},
    )

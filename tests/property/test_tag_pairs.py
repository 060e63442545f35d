"""Tags of many series: the compiled loops find what Python finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.names import Widths
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.tag_groups import common_tags, group_values

WIDTHS = st.sampled_from([Widths(), Widths(3, 1, 2), Widths(3, 2, 5)])
pytestmark = pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")


@st.composite
def series(draw: st.DrawFn) -> tuple[list[bytes], Widths]:
    """Series by their joined pairs: most have the tag names of the first one."""
    widths = draw(WIDTHS)
    names = draw(st.lists(st.integers(0, 3), max_size=4))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        own = names if draw(st.integers(0, 5)) else draw(st.lists(st.integers(0, 3), max_size=4))
        value = st.sampled_from([0, 1, 255, (1 << 8 * widths.tagv) - 1])
        found.append(
            b"".join(name.to_bytes(widths.tagk, "big") + draw(value).to_bytes(widths.tagv, "big") for name in own)
        )
    return found, widths


@given(series())
def test_common_tags(some: tuple[list[bytes], Widths]) -> None:
    assert common_tags(*some, compiled=True) == common_tags(*some, compiled=False)


@given(series(), st.sets(st.integers(0, 4), max_size=3))
def test_values_of_groups(some: tuple[list[bytes], Widths], tags: set[int]) -> None:
    series_pairs, widths = some
    group_by = [tag.to_bytes(widths.tagk, "big") for tag in tags]
    if not group_by:
        return
    one, two = (group_values(series_pairs, widths, group_by, compiled=compiled) for compiled in (True, False))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert one.tolist() == two.tolist()

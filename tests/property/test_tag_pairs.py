"""Tags of many series: the compiled loops find what Python finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.names import Widths
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.tag_groups import common_tags, common_tags_of, group_values

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


@given(series(), st.integers(1, 7))
def test_common_tags(some: tuple[list[bytes], Widths], at_once: int) -> None:
    series_pairs, widths = some
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsd.query.tag_groups.AT_ONCE", at_once)
        found = common_tags_of(series_pairs, [np.arange(len(series_pairs))], widths)
    assert found == [common_tags(series_pairs, widths)]


@given(series(), st.data())
def test_common_tags_of_groups(some: tuple[list[bytes], Widths], data: st.DataObject) -> None:
    series_pairs, widths = some
    group_of = data.draw(st.lists(st.integers(0, 3), min_size=len(series_pairs), max_size=len(series_pairs)))
    groups = [np.array([place for place, own in enumerate(group_of) if own == number], np.int64) for number in range(3)]
    found = [common_tags_of(series_pairs, groups, widths, compiled=compiled) for compiled in (True, False)]
    assert found[0] == found[1] == [common_tags([series_pairs[place] for place in group], widths) for group in groups]
    groups = [group for group in groups if len(group)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsd.query.tag_groups.AT_ONCE", data.draw(st.integers(1, 7)))
        found = [common_tags_of(series_pairs, groups, widths, compiled=compiled) for compiled in (True, False)]
    assert found[0] == found[1]
    assert all(list(one.tags) == sorted(one.tags) for one in found[0])


@given(series(), st.sets(st.integers(0, 4), max_size=3), st.integers(1, 7))
def test_values_of_groups(some: tuple[list[bytes], Widths], tags: set[int], at_once: int) -> None:
    series_pairs, widths = some
    group_by = [tag.to_bytes(widths.tagk, "big") for tag in tags]
    if not group_by:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsd.query.tag_groups.AT_ONCE", at_once)
        one, two = (group_values(series_pairs, widths, group_by, compiled=compiled) for compiled in (True, False))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert one.tolist() == two.tolist()

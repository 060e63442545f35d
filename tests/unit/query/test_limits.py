"""Which bounds hold for a query, and what says so."""

import json
from pathlib import Path

import pytest

from tsd.errors import BadConfig, BadQuery
from tsd.query.limits import Bounds, Limits, Memory, check_fetched, read_overrides


def test_the_first_metric_that_matches_counts(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps([{"metric": "^sys", "byteLimit": 5}, {"metric": "cpu$", "dataPointsLimit": 6}]))
    limits = Limits(Bounds(1, 2), read_overrides(path))

    def bounds(metric: str) -> Bounds:
        return limits.bounds(metric, override_size=True, override_points=True)

    assert bounds("sys.cpu") == Bounds(5, 0)
    assert bounds("app.cpu") == Bounds(0, 6)
    assert bounds("app") == Bounds(1, 2)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"byteLimit": 1}]', '[{"metric": "("}]', '{"metric": "a"}'])
def test_a_file_that_cannot_be_used_is_said_at_the_start(text: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(BadConfig, match=r"tsd\.query\.limits\.overrides\.config"):
        read_overrides(path)


def test_a_bound_itself_may_be_fetched() -> None:
    check_fetched(Bounds(10, 10), size=10, points=10)
    check_fetched(Bounds(), size=1 << 40, points=1 << 40)
    with pytest.raises(BadQuery, match="limit of 10 data points"):
        check_fetched(Bounds(0, 10), size=0, points=11)
    with pytest.raises(BadQuery, match="maximum amount of 3MB from storage"):
        check_fetched(Bounds(3 << 20, 0), size=(3 << 20) + 1, points=0)


def test_what_one_query_gives_back_another_may_have() -> None:
    memory = Memory(100)
    one, other = memory.share(), memory.share()
    one.hold(60)
    with pytest.raises(BadQuery, match="more memory than queries may have together"):
        other.hold(41)
    other.hold(40)
    one.release()
    other.hold(100)
    other.release()
    assert (memory.held, memory.refused) == (0, 1)

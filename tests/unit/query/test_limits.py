"""Configured bounds of queries."""

import json
from pathlib import Path

import pytest

from tsd.errors import BadConfig, BadQuery
from tsd.query.limits import Bounds, Limits, QueryMemory, check_fetched, read_overrides


def test_first_matching_override_counts(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps([{"metric": "^sys", "byteLimit": 5}, {"metric": "cpu$", "dataPointsLimit": 6}]))
    limits = Limits(Bounds(1, 2), read_overrides(path))

    def bounds(metric: str) -> Bounds:
        return limits.bounds(metric, override_size=True, override_points=True)

    assert bounds("sys.cpu") == Bounds(5, 0)
    assert bounds("app.cpu") == Bounds(0, 6)
    assert bounds("app") == Bounds(1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '[{"byteLimit": 1}]',
        '[{"metric": "("}]',
        '{"metric": "a"}',
        '[{"metric": "a", "byteLimit": "x"}]',
    ],
)
def test_unusable_overrides_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(BadConfig, match=r"tsd\.query\.limits\.overrides\.config") as refused:
        read_overrides(path)
    assert "Error(" not in str(refused.value)  # what Python calls it


def test_bound_itself_is_allowed() -> None:
    check_fetched(Bounds(10, 10), size=10, points=10)
    check_fetched(Bounds(), size=1 << 40, points=1 << 40)
    with pytest.raises(BadQuery, match="limit of 10 data points"):
        check_fetched(Bounds(0, 10), size=0, points=11)
    with pytest.raises(BadQuery, match="maximum amount of 3MB from storage"):
        check_fetched(Bounds(3 << 20, 0), size=(3 << 20) + 1, points=0)


def test_released_memory_can_be_reused() -> None:
    memory = QueryMemory(100)
    one, other = memory.share(), memory.share()
    one.resize(60)
    with pytest.raises(BadQuery, match="more memory than all queries may hold"):
        other.resize(41)
    other.resize(40)
    one.release()
    other.resize(100)
    other.release()
    assert (memory.held, memory.refused) == (0, 1)

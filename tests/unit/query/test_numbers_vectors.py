"""The numbers of the recorded vectors, without an engine."""

import json
import math
from typing import Any

from tests.cases import all_of
from tests.query_vectors import answer, chosen_groups, read_request, stored, vectors

TOPICS = ("aggregators/", "downsample", "fill", "rate", "calendar", "grouping", "ms", "range")


def judged() -> list[tuple[int, dict[str, Any]]]:
    return [
        (number, query)
        for number, query in enumerate(vectors()["queries"])
        if query["topic"].startswith(TOPICS) and query["status"] == 200 and read_request(query["request"])
    ]


def test_most_vectors_have_numbers() -> None:
    of_topics = [query for query in vectors()["queries"] if query["topic"].startswith(TOPICS)]
    assert len(judged()) > 0.8 * len(of_topics)


@all_of(judged(), lambda case: f"{case[0]}-{case[1]['topic']}")
def test_vector_numbers_are_equal(case: tuple[int, dict[str, Any]]) -> None:
    _, query = case
    request = read_request(query["request"])
    assert request
    series = stored()[request.metric]
    wanted = [{time: spelled(value) for time, value in group["dps"].items()} for group in query["response"]]
    unit = 1 if request.in_ms else 1000
    for rows in (1, 1000):
        found = answer([one.points for one in series], chosen_groups(series, request), request, rows=rows)
        shown = [{str(time // unit): spelled(value) for time, value in group.items()} for group in found]
        assert sorted(shown, key=json.dumps) == sorted(wanted, key=json.dumps)


def spelled(value: float | str | None) -> str:
    """A number with its type."""
    if value is None or value == "NaN" or (isinstance(value, float) and math.isnan(value)):
        return "NaN"
    return repr(value)

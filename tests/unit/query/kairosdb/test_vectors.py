"""KairosDB's recorded queries, on its recorded points in memory."""

import json
from typing import Any

from tests.cases import all_of
from tests.kairosdb_series import body_of, is_same, recorded, series_of
from tsd.errors import BadQuery
from tsd.query.kairosdb.answer import evaluate, write_answer
from tsd.query.kairosdb.model import BadRequest
from tsd.query.kairosdb.request import read_request
from tsd.query.kairosdb.steps import Frame

NOW_MS = 1_790_000_000_000

# Answers that differ from KairosDB's, and why (docs/kairosdb.md). Its status 500 for a client's mistake is 400 here.
DIFFERENT = {
    "NaN in the answer": "NaN is null",
    "NaN summed": "NaN is null",
    "NaN, max": "NaN is null",
    "scale 1e+308": "infinities are null",
    "save_as": "queries do not write",
    "save_as with tags": "queries do not write",
}
# Messages of Java and Gson, which have other words here.
JAVA = ("java.", "com.google.", "Property '")


def cases() -> list[dict[str, Any]]:
    return [case for case in recorded()["queries"]["cases"] if not case.get("path", "").endswith("/tags")]


def answer_of(body: str) -> tuple[int, Any]:
    try:
        wanted = read_request(body, NOW_MS)
        found = [
            evaluate(
                series_of(one),
                one,
                Frame(one.start_ms, min(one.end_ms, NOW_MS), wanted.zone, lambda _size: None, lambda: None),
            )
            for one in wanted.metrics
        ]
    except BadRequest as error:
        return error.status, {"errors": list(error.messages)}
    except BadQuery as error:
        return error.status, {"errors": [error.message]}
    return 200, json.loads(b"".join(write_answer(found)))


@all_of(cases(), lambda case: case["name"])
def test_recorded_query_is_answered(case: dict[str, Any]) -> None:
    status, found = answer_of(body_of(case))
    if case["name"] in DIFFERENT:
        assert status == 400 if DIFFERENT[case["name"]] == "queries do not write" else 200
        return
    if case["status"] == 200:
        assert status == 200, found
        assert is_same(found, json.loads(case["answer"]))
        return
    assert status == 400
    wanted = json.loads(case["answer"])["errors"]
    if case["status"] == 400 and not str(wanted[0]).startswith(JAVA):
        assert found["errors"] == wanted

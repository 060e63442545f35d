"""Numbers of generated queries equal the reference, bit by bit."""

import math
import struct
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.peers.needs import full_run
from tests.query_reference import reference
from tests.query_series import Question, questions
from tests.query_vectors import Value, answer
from tests.seeds import FACTOR
from tsd.query import row_buckets

EXAMPLES = settings().max_examples * (FACTOR if full_run() else 1)
law = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def bits(points: Mapping[int, Value]) -> dict[int, str]:
    """Values to the last bit, but of a NaN's."""
    return {
        time: f"i{v}" if isinstance(v, int) else "NaN" if math.isnan(v) else struct.pack(">d", v).hex()
        for time, v in points.items()
    }


def compare(question: Question, rows: int) -> None:
    wanted = bits(reference(question.series, question.query))
    for compiled in {row_buckets.HAS_LOOP, False}:
        [found] = answer(question.series, [range(len(question.series))], question.query, rows=rows, compiled=compiled)
        assert bits(found) == wanted


@law
@given(question=questions(nan=True), rows=st.sampled_from([1, 2, 3, 100]))
def test_answers_equal_the_reference(question: Question, rows: int) -> None:
    compare(question, rows)


@pytest.mark.slow
@law
@given(question=questions(by_calendar=True, nan=True), rows=st.sampled_from([1, 5, 1000]))
def test_calendar_answers_equal_the_reference(question: Question, rows: int) -> None:
    compare(question, rows)

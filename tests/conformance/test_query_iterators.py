"""Compare the numbers of generated queries with OpenTSDB's own iterators in a Java process."""

import math
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from scripts.peers.java import fetch, find_java
from tests.peers.needs import need_peer
from tests.query_series import Question, questions
from tests.query_vectors import QueryRequest, Value, answer
from tsd.query.plan import output_range, scan_range

pytestmark = pytest.mark.opentsdb
law = settings(deadline=None, max_examples=500, suppress_health_check=list(HealthCheck))


class Iterators:
    """Calls OpenTSDB's iterators."""

    def __init__(self) -> None:
        source = Path(__file__).with_name("OpentsdbNumbers.java")
        command = [str(find_java()), "-cp", f"{fetch('opentsdb')}/*", str(source)]
        self._java = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def call(self, question: Question) -> dict[int, Value] | None:
        """Return the merged points over the scan range; None if OpenTSDB fails."""
        assert self._java.stdin
        assert self._java.stdout
        self._java.stdin.write(" ".join(spelled(question)) + "\n")
        self._java.stdin.flush()
        mark, _, text = self._java.stdout.readline().rstrip("\n").partition(" ")
        return None if mark == "!" else dict(read_point(word) for word in text.split(",") if word)

    def close(self) -> None:
        self._java.communicate(timeout=60)


@pytest.fixture(scope="module")
def iterators() -> Iterator[Iterators]:
    need_peer("opentsdb")
    process = Iterators()
    yield process
    process.close()


def spelled(question: Question) -> Iterator[str]:
    """Format a question."""
    query = question.query
    scan = scan_range(query.start_ms, query.end_ms, query.downsample)
    yield from map(str, (scan.start_ms, scan.stop_ms, query.start_ms, query.end_ms))
    yield query.aggregator
    yield query.downsample.text if query.downsample else "-"
    calendar = query.downsample.calendar if query.downsample else None
    yield from (calendar.zone, "calendar") if calendar else ("-", "-")
    rate = query.rate
    yield f"{rate.counter},{rate.counter_max},{rate.reset_value},{rate.drop_resets}".lower() if rate else "-"
    for series in question.series:
        inside = {time: v for time, v in series.items() if scan.start_ms <= time < scan.stop_ms}
        yield "".join(f"{time}:{spell_value(v)}," for time, v in sorted(inside.items())) or ","


def spell_value(value: Value) -> str:
    return f"d{struct.pack('>d', value).hex()}" if isinstance(value, float) else f"i{value}"


def read_point(word: str) -> tuple[int, Value]:
    time, _, value = word.partition(":")
    if value[0] == "i":
        return int(time), int(value[1:])
    return int(time), float(struct.unpack(">d", bytes.fromhex(value[1:].rjust(16, "0")))[0])


def shown(points: Mapping[int, Value], query: QueryRequest) -> dict[int, str]:
    """Format an answer bit by bit, except NaNs."""
    inside = output_range(query.start_ms, query.end_ms, query.downsample)
    return {
        time: "NaN" if isinstance(v, float) and math.isnan(v) else spell_value(v)
        for time, v in points.items()
        if time in inside
    }


def compare(iterators: Iterators, question: Question) -> None:
    theirs = iterators.call(question)
    if theirs is None:
        return
    [ours] = answer(question.series, [range(len(question.series))], question.query)
    assert shown(ours, question.query) == shown(theirs, question.query)


@pytest.mark.slow
@law
@given(question=questions(nan=True))
def test_series_processed_as_by_opentsdb_iterators(iterators: Iterators, question: Question) -> None:
    compare(iterators, question)


@pytest.mark.slow
@settings(law, max_examples=200)  # these take ten times as long as others
@given(question=questions(by_calendar=True))
def test_calendar_buckets_are_those_of_opentsdb_in_every_zone(iterators: Iterators, question: Question) -> None:
    compare(iterators, question)

"""What `tsd torture` says of rows: each way in which they may differ from what was sent is found, and nothing else."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tsd.cli.torture.report import TortureReport, table
from tsd.cli.torture.senders import LineKey, Lines, Sender, SentSeries
from tsd.cli.torture.verify import Comparison, StoredRow, Verification

LINES = Lines("place", 0, slots=3, life=16)
SENT, CONFIRMED = 3 * 40, 3 * 32
HIDDEN = 3 * 4  # its time is given another value by
LATER = 3 * 7


class RecordedSender(Sender):
    """A client that has sent SENT lines, of which the first `confirmed` are acknowledged."""

    def __init__(self, lines: Lines = LINES, confirmed: int = CONFIRMED) -> None:
        super().__init__(lines, seed=0)
        self.sent = SENT
        self.confirmed = confirmed

    def acknowledged(self) -> NDArray[np.bool_]:
        return np.arange(self.sent) < self.confirmed


def rows(*numbers: int, lines: Lines = LINES, value: float = 0, time: int = 0) -> Iterator[StoredRow]:
    """The rows of these lines, their values and times so much higher."""
    series: dict[SentSeries, list[int]] = {}
    for n in numbers:
        line = lines.line(n)
        series.setdefault(SentSeries(line.metric, line.tags), []).append(n)
    for names, own in series.items():
        times = [lines.line(n).time + time for n in own]
        yield StoredRow(names, np.array(times), np.array([lines.value(n) + value for n in own], np.float64))


def judged(*found: StoredRow, senders: list[Sender] | None = None) -> Verification:
    comparison = Comparison(senders or [RecordedSender()])
    for row in found:
        comparison.take(row)
    return comparison.verification()


def all_but(*left_out: int, count: int = CONFIRMED) -> list[int]:
    """What a store holds after so many lines: of each time the last value."""
    replaced_by = dict(zip(LINES.replaced_by(np.arange(count)).tolist(), range(count), strict=False))
    hidden = {
        n
        for n in range(count)
        if LINES.replaced_by(np.array([n]))[0] != n and LINES.replaced_by(np.array([n]))[0] < count
    }
    assert replaced_by
    return [n for n in range(count) if n not in hidden | {*left_out}]


def counts(verification: Verification) -> tuple[int, int, int]:
    return verification.lost.count, verification.invented.count, verification.doubled.count


def test_a_line_is_found_by_its_point() -> None:
    lines = Lines("place", 7)
    for n in range(1000):
        [row] = rows(n, lines=lines)
        assert lines.numbers(row.series, row.times, row.values).tolist() == [n]


def test_every_eighth_point_overwrites_an_earlier_value() -> None:
    assert LINES.replaced_by(np.array([HIDDEN, LATER])).tolist() == [LATER, LATER]
    assert LINES.line(HIDDEN) == LINES.line(LATER)
    assert LINES.value(HIDDEN) != LINES.value(LATER)


@pytest.mark.parametrize("count", [CONFIRMED, SENT])
def test_unacknowledged_point_may_be_stored_or_not(count: int) -> None:
    verification = judged(*rows(*all_but(count=count)))
    assert counts(verification) == (0, 0, 0)
    assert verification.stored + verification.replaced >= CONFIRMED


def test_missing_acknowledged_point_is_lost() -> None:
    verification = judged(*rows(*all_but(5)))
    assert counts(verification) == (1, 0, 0)
    assert verification.lost.examples == (LINES.put_line(5),)


def test_older_value_after_an_acknowledged_newer_one_is_lost() -> None:
    assert counts(judged(*rows(*all_but(LATER), HIDDEN))) == (1, 0, 0)


def test_unacknowledged_newer_value_may_be_stored() -> None:
    sender = RecordedSender(confirmed=LATER)
    assert counts(judged(*rows(*[n for n in range(LATER + 1) if n != HIDDEN]), senders=[sender])) == (0, 0, 0)


@pytest.mark.parametrize(
    "strange",
    [
        rows(SENT),  # not sent yet
        rows(5, value=0.5),
        rows(5, value=1),
        rows(5, time=1),
        rows(5, lines=LINES._replace(connection=1)),
        rows(5, lines=LINES._replace(place="another")),
        [StoredRow(SentSeries("place.2.0", LINES.line(1).tags), np.array([LINES.line(1).time]), np.array([1.0]))],
        [StoredRow(SentSeries("place.bad", (("host", "a"),)), np.array([1_500_000_000]), np.array([1.0]))],
        [StoredRow(SentSeries("x", ()), np.array([1]), np.array([np.nan]))],
        [StoredRow(SentSeries(*LINES.line(0)[:2]), np.array([LINES.line(0).time]), np.array([np.nan]))],
    ],
    ids=["not sent", "half more", "one more", "later", "connection", "place", "metric", "refused", "nan", "own nan"],
)
def test_stored_point_that_was_never_sent_is_invented(strange: Iterator[StoredRow]) -> None:
    assert counts(judged(*rows(*all_but()), *strange)) == (0, 1, 0)


def test_time_in_two_rows_is_a_duplicate() -> None:
    assert counts(judged(*rows(*all_but()), *rows(5))) == (0, 0, 1)
    assert counts(judged(*rows(*all_but()), *rows(HIDDEN))) == (0, 0, 1)


def test_report_shows_some_examples_and_counts_all() -> None:
    report = TortureReport(rounds=1)
    report.add_senders([RecordedSender()], judged())
    assert not report.good
    assert report.lost.count == CONFIRMED
    assert 0 < len(report.lost.examples) < CONFIRMED
    assert report.sent == report.acknowledged + report.open == SENT
    total = TortureReport()
    total.add(report)
    assert total.as_dict() == report.as_dict()
    assert table([("kill", total)])[1].split() == ["kill", "1", "120", "96", "0", "24", "0", "0", "96", "0", "0"]


def test_line_is_determined_by_its_number() -> None:
    assert LINES.text(4, 5) == b"put place.1.0 1500000001250 4 connection=c0 host=h1.0\n"
    assert LINES.line(5) == LineKey("place.2.0", (("connection", "c0"), ("host", "h2.0")), 1_500_000_001)
    assert LINES.metrics(SENT) == ["place.0.0", "place.0.1", "place.1.0", "place.1.1", "place.2.0", "place.2.1"]

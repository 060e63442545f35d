"""What `tsd torture` says of rows: each way in which they may differ from what was sent is found, and nothing else."""

from collections.abc import Iterator

import numpy as np
import pytest

from tsd.torture.ledger import Ledger, table
from tsd.torture.lines import Line, Lines, Series
from tsd.torture.reading import StoredRow
from tsd.torture.senders import Sender
from tsd.torture.verdict import EXAMPLES, Account, Verdict

LINES = Lines("place", 0, slots=3, life=16)
SENT, CONFIRMED = 3 * 40, 3 * 32
HIDDEN = 3 * 4  # its time is given another value by
LATER = 3 * 7


class Said(Sender):
    """A client that has sent SENT lines, of which the first CONFIRMED are acknowledged."""

    def __init__(self, lines: Lines = LINES) -> None:
        super().__init__(lines, seed=0)
        self.sent = SENT
        self._starts, self._confirmed = [0], [CONFIRMED]


def rows(*numbers: int, lines: Lines = LINES, value: float = 0, time: int = 0) -> Iterator[StoredRow]:
    """The rows of these lines, their values and times so much higher."""
    series: dict[Series, list[int]] = {}
    for n in numbers:
        line = lines.line(n)
        series.setdefault(Series(line.metric, line.tags), []).append(n)
    for names, own in series.items():
        times = [lines.line(n).time + time for n in own]
        yield StoredRow(names, np.array(times), np.array([lines.value(n) + value for n in own], np.float64))


def judged(*found: StoredRow, senders: list[Sender] | None = None) -> Verdict:
    account = Account(senders or [Said()])
    for row in found:
        account.take(row)
    return account.verdict()


def all_but(*left_out: int, count: int = CONFIRMED) -> list[int]:
    """What a store holds after so many lines: of each time the last value."""
    later = dict(zip(LINES.later(np.arange(count)).tolist(), range(count), strict=False))
    hidden = {n for n in range(count) if LINES.later(np.array([n]))[0] != n and LINES.later(np.array([n]))[0] < count}
    assert later
    return [n for n in range(count) if n not in hidden | {*left_out}]


def counts(verdict: Verdict) -> tuple[int, int, int]:
    return verdict.lost.count, verdict.invented.count, verdict.doubled.count


def test_a_line_is_found_by_its_point() -> None:
    lines = Lines("place", 7)
    for n in range(1000):
        [row] = rows(n, lines=lines)
        assert lines.numbers(row.series, row.times, row.values).tolist() == [n]


def test_every_eighth_point_of_a_series_gives_an_earlier_time_another_value() -> None:
    assert LINES.later(np.array([HIDDEN, LATER])).tolist() == [LATER, LATER]
    assert LINES.line(HIDDEN) == LINES.line(LATER)
    assert LINES.value(HIDDEN) != LINES.value(LATER)


@pytest.mark.parametrize("count", [CONFIRMED, SENT])
def test_what_was_not_acknowledged_may_be_there_or_not(count: int) -> None:
    verdict = judged(*rows(*all_but(count=count)))
    assert counts(verdict) == (0, 0, 0)
    assert verdict.stored + verdict.replaced >= CONFIRMED


def test_an_acknowledged_point_that_is_not_there_is_lost() -> None:
    verdict = judged(*rows(*all_but(5)))
    assert counts(verdict) == (1, 0, 0)
    assert verdict.lost.examples == (LINES.shown(5),)


def test_an_earlier_value_where_a_later_one_was_acknowledged_is_a_loss() -> None:
    assert counts(judged(*rows(*all_but(LATER), HIDDEN))) == (1, 0, 0)


def test_a_later_value_that_was_not_acknowledged_may_be_the_one() -> None:
    sender = Said()
    sender._confirmed = [LATER]
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
        [StoredRow(Series("place.2.0", LINES.line(1).tags), np.array([LINES.line(1).time]), np.array([1.0]))],
        [StoredRow(Series("place.bad", (("host", "a"),)), np.array([1_500_000_000]), np.array([1.0]))],
        [StoredRow(Series("x", ()), np.array([1]), np.array([np.nan]))],
        [StoredRow(Series(*LINES.line(0)[:2]), np.array([LINES.line(0).time]), np.array([np.nan]))],
    ],
    ids=["not sent", "half more", "one more", "later", "connection", "place", "metric", "refused", "nan", "own nan"],
)
def test_what_nobody_sent_is_invented(strange: Iterator[StoredRow]) -> None:
    assert counts(judged(*rows(*all_but()), *strange)) == (0, 1, 0)


def test_a_time_that_stands_in_two_rows_is_doubled() -> None:
    assert counts(judged(*rows(*all_but()), *rows(5))) == (0, 0, 1)
    assert counts(judged(*rows(*all_but()), *rows(HIDDEN))) == (0, 0, 1)


def test_an_account_shows_some_examples_and_counts_all() -> None:
    ledger = Ledger(rounds=1)
    ledger.enter([Said()], judged())
    assert not ledger.good
    assert (ledger.lost.count, len(ledger.lost.examples)) == (CONFIRMED, EXAMPLES)
    assert ledger.sent == ledger.acknowledged + ledger.open == SENT
    total = Ledger()
    total.add(ledger)
    assert total.told() == ledger.told()
    assert table([("kill", total)])[1].split() == ["kill", "1", "120", "96", "0", "24", "0", "0", "96", "0", "0"]


def test_a_line_says_what_its_number_says() -> None:
    assert LINES.text(4, 5) == b"put place.1.0 1500000001250 4 connection=c0 host=h1.0\n"
    assert LINES.line(5) == Line("place.2.0", (("connection", "c0"), ("host", "h2.0")), 1_500_000_001)
    assert LINES.metrics(SENT) == ["place.0.0", "place.0.1", "place.1.0", "place.1.1", "place.2.0", "place.2.1"]

"""Start times of calendar buckets around the clock changes of many zones, compared with OpenTSDB's own classes."""

import random
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from scripts.peers.java import fetch, find_java
from tests.peers.needs import need_peer
from tests.query_series import ZONES
from tsd.query.calendar import base
from tsd.query.model import Calendar

pytestmark = [pytest.mark.opentsdb, pytest.mark.slow]
# Clocks of these zones also change at midnight, by half an hour or two hours, and on Fridays.
MORE_ZONES = (
    *("Asia/Tehran", "America/Asuncion", "America/Santiago", "Africa/Cairo", "Atlantic/Azores", "Asia/Amman"),
    *("Asia/Damascus", "America/Godthab", "Antarctica/Troll", "Asia/Gaza"),
)
SPANS = (
    *((250, "ms"), (10, "ms"), (7, "s"), (90, "s"), (1, "m"), (30, "m"), (45, "m"), (1, "h"), (2, "h"), (5, "h")),
    *((12, "h"), (25, "h"), (1, "d"), (2, "d"), (5, "d"), (1, "w"), (2, "w"), (3, "w"), (1, "n"), (2, "n"), (5, "n")),
    *((1, "y"), (2, "y")),
)
YEARS = (datetime(2010, 1, 1, tzinfo=UTC), datetime(2019, 1, 1, tzinfo=UTC))
NEAR_MS = (0, 0, -1, 1, -86_400_000, -7 * 86_400_000)
HOUR_MS = 3_600_000


class Question(NamedTuple):
    """A time in ms and a kind of bucket."""

    time_ms: int
    calendar: Calendar


def changes(zone: str) -> Iterator[int]:
    """Yield the seconds at which a zone's clocks change in YEARS."""

    def offset(at: datetime) -> timedelta | None:
        return at.astimezone(ZoneInfo(zone)).utcoffset()

    at, end = YEARS
    while at < end:
        early, late = at, at + timedelta(days=3)
        if offset(early) != offset(late):
            while late - early > timedelta(seconds=1):
                middle = early + timedelta(seconds=(late - early) // timedelta(seconds=2))
                early, late = (middle, late) if offset(middle) == offset(at) else (early, middle)
            yield int(late.timestamp())
        at += timedelta(days=3)


def random_questions(seed: int, count: int) -> list[Question]:
    """Return times, mostly near clock changes, with every kind of bucket."""
    draw = random.Random(seed)
    moments = {zone: list(changes(zone)) for zone in (*ZONES, *MORE_ZONES)}
    first, last = (int(year.timestamp()) for year in YEARS)
    found = []
    for _ in range(count):
        zone = draw.choice(list(moments))
        change = draw.choice(moments[zone] or [draw.randrange(first, last)])
        shift = draw.choice(
            (draw.choice(NEAR_MS), draw.randrange(-60, 60) * HOUR_MS, draw.randrange(-(10**10), 10**10))
        )
        found.append(Question(change * 1000 + shift, Calendar(*draw.choice(SPANS), zone)))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_calendar_buckets_start_as_in_opentsdb(seed: int) -> None:
    need_peer("opentsdb")
    questions = random_questions(seed, 20_000)
    source = Path(__file__).with_name("OpentsdbCalendar.java")
    lines = "".join(f"{time} {span.number} {span.unit} {span.zone}\n" for time, span in questions)
    command = [str(find_java()), "-cp", f"{fetch('opentsdb')}/*", str(source)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, check=True)
    theirs = list(map(int, done.stdout.split()))
    assert len(theirs) == len(questions)
    assert [q for q, start in zip(questions, theirs, strict=True) if base(*q) != start] == []

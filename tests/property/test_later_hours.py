"""Answers that are cut at the end of a query do not depend on how hours after the end are read: with the others, or
only where they are needed."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.layout_queries import AGGREGATORS, FUNCTIONS
from tests.unit.query.engines import NOW_MS, START_S, QueryEnvironment
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import BadQuery
from tsd.query.engine import QueryEngine
from tsd.query.model import Query
from tsd.query.parse.uri import read_uri
from tsd.query.serialize import written_answer
from tsd.tables.quirks import quirks_for

HOURS = 4
LAST_S = START_S + HOURS * 3600 - 1
INTERVALS = "1s 10s 1m 7m 10m 1h 90m 2h 1dc 0all".split()
FILTERS = [
    "{host=a|b|c}", "{}{host=literal_or(a|b|c)}", "{host=a|b}", "{host=a|b|c,cpu=0}", "{}{host=literal_or(a)}",
    "{host=a}", "{host=b,cpu=*}", "{dc=*}{host=literal_or(a|b|c)}", "{}{host=wildcard(*)}",
]  # fmt: skip
STEPS = [7, 10, 60, 60, 601, 1800]


def lines(dice: random.Random) -> Iterator[str]:
    """Yield points of series with gaps around the ends of hours: most begin and end with the hours, some do not."""
    kind, step = dice.choice(["integers", "doubles", "doubles", "mixed", "any"]), dice.choice(STEPS)
    gaps = dice.choice([0.0, 0.1, 0.5])
    for host in "abc":
        for cpu in range(dice.choice([1, 1, 3])):
            tags = f"host={host} cpu={cpu}" + (" dc=lga" if dice.random() < 0.8 else "")
            own = dice.choice(STEPS) if dice.random() < 0.2 else step
            kinds = dice.choice(["integers", "doubles", "mixed"]) if kind == "any" else kind
            for hour in range(HOURS):
                first, last = 0, 3600
                if dice.random() < gaps:
                    last = dice.choice([0, 1, own, 1800, 3600 - own, 3600 - 2 * own])
                if dice.random() < gaps:
                    first = dice.choice([1, own, 1800, 3599])
                for at in range(first, last, own):
                    time = (START_S + hour * 3600 + at) * 1000
                    if dice.random() < 0.05:
                        time += dice.choice([1, 500, 999])
                    yield f"m {time} {value(dice, kinds)} {tags}"
                if dice.random() < gaps / 2:
                    time = (START_S + hour * 3600 + 3599) * 1000 + dice.choice([0, 1, 999])
                    yield f"m {time} {value(dice, kinds)} {tags}"
        if dice.random() < gaps:  # a series that has ended, is about to begin, or has one point
            yield f"m {START_S + dice.choice([-86_400, 5000, 9000, 86_400])} {value(dice, kind)} host={host} cpu=9"


def value(dice: random.Random, kind: str) -> str:
    """Return a value."""
    whole = dice.choice([0, 1, -7, 255, 70_000, dice.randrange(1000)])
    is_whole = kind == "integers" or (kind == "mixed" and dice.random() < 0.5)
    return str(whole) if is_whole else str(whole + dice.choice([0.0, 0.5, 0.25]))


def metric_query(dice: random.Random) -> str:
    """Return a sub query."""
    parts = [dice.choice([*AGGREGATORS, "first", "last", "diff"])]
    if dice.random() < 0.3:
        parts.append(dice.choice(["rate", "rate{counter,1000,50}", "rate{dropcounter}"]))
    if dice.random() < 0.5:
        fill = dice.choice(["", "", "-nan", "-zero", "-null"])
        parts.append(f"{dice.choice(INTERVALS)}-{dice.choice(FUNCTIONS)}{fill}")
    return ":".join(parts) + ":m" + dice.choice(FILTERS)


def query(m: str, start_ms: int, end_ms: int, *, corrected: bool) -> Query:
    """Return a query with times in milliseconds."""
    params = {"start": [f"{start_ms}ms"], "end": [f"{end_ms}ms"], "m": [m]}
    return replace(read_uri(params, NOW_MS, quirks=quirks_for(corrected)), ms_resolution=True, show_tsuids=True)


async def text(engine: QueryEngine, wanted: Query, *, is_cut: bool) -> bytes:
    """Return the answer as JSON, or the error."""
    try:
        return written_answer(await engine.run(wanted, is_cut=is_cut), arrays=True)
    except BadQuery as error:
        return str(error).encode()


def spans(dice: random.Random) -> Iterator[tuple[int, int]]:
    """Yield ranges of time in milliseconds, most of which end with an hour."""
    for _ in range(4):
        start_s = START_S + dice.choice([0, 0, 3600, 7200, dice.randrange(7200)])
        hours = dice.choice([3599, 3599, 7199, 3 * 3600 - 1])
        end_s = min(LAST_S, (start_s // 3600) * 3600 + hours)
        start_s = min(start_s, end_s - 700)
        yield start_s * 1000, end_s * 1000 + dice.choice([0, 0, 0, 1, 500, 999, -1000, -1, -300_000])


async def differing(seed: int, *, salted: bool, queries: int = 12) -> list[tuple[str, tuple[int, int], bool]]:
    """Return the queries of a seed whose answers differ: repeated ones that are cut, and single ones that are not."""
    dice = random.Random(seed)
    layout = KeyLayout(salt_width=1, salt_buckets=3) if salted else KeyLayout()
    env = await QueryEnvironment.build(sorted(set(lines(dice))), layout=layout, indexed=True)
    engine, found = env.repeating_engine(), []
    reader = env.repeating
    for _ in range(queries):
        m, corrected = metric_query(dice), dice.random() < 0.2
        await text(engine, query(m, START_S * 1000, LAST_S * 1000, corrected=corrected), is_cut=True)
        for span in spans(dice):
            wanted = query(m, *span, corrected=corrected)
            if await text(engine, wanted, is_cut=True) != await text(env.repeating_engine(), wanted, is_cut=False):
                found.append((m, span, corrected))
    assert reader.selections < 5 * queries  # some repeated ones were answered without a selection
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 30), st.booleans())
async def test_answers_with_and_without_later_hours(seed: int, salted: bool) -> None:
    assert await differing(seed, salted=salted) == []

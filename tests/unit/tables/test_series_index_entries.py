"""Entries of the index of series: the same by the compiled loops, and every series under each of its tags."""

import random
from itertools import groupby

import pytest

from tests.seeds import seeds
from tsd.codec.names import Widths
from tsd.store import CellPage, Put
from tsd.tables.opentsdb.series_index import (
    ALONE,
    HAS_LOOP,
    OWN,
    SHARED,
    other_entries,
    own_entries,
    own_rows,
    series_in,
)

WIDTHS = [Widths(), Widths(1, 2, 1), Widths(4, 1, 8)]


def many(chance: random.Random, widths: Widths) -> dict[bytes, list[bytes]]:
    """Series by metric, few names of each kind."""

    def uid(size: int) -> bytes:
        return chance.randint(1, 5).to_bytes(size, "big")

    def pairs() -> bytes:
        tags = {uid(widths.tagk): uid(widths.tagv) for _ in range(chance.randint(1, 4))}
        return b"".join(tagk + tags[tagk] for tagk in sorted(tags))

    return {uid(widths.metric): [*{pairs() for _ in range(chance.randint(1, 9))}] for _ in range(chance.randint(0, 3))}


def read(entries: list[Put], ahead: int, prefix_bytes: int) -> dict[bytes, list[bytes]]:
    """The series by what rows start with, as a scan of each of these starts finds them."""
    found = {}
    for prefix, some in groupby(sorted(entries), key=lambda entry: entry.row[:prefix_bytes]):
        rows, columns, values = (list(column) for column in zip(*some, strict=True))
        page = CellPage(rows, columns, [bytes(ahead) + value for value in values], ahead, [], None)
        found[prefix] = sorted(series_in(page, prefix_bytes))
    return found


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("seed", seeds(30, fast=5))
def test_series_has_one_entry_per_tag_and_one_for_none(seed: int, widths: Widths) -> None:
    chance = random.Random(seed)
    series, ahead = many(chance, widths), chance.choice([0, 8])
    rows = own_rows(series, widths)
    entries = own_entries(rows) + other_entries(rows, widths)
    wanted: dict[bytes, list[bytes]] = {}
    for metric, some in series.items():
        for pairs in sorted(some):
            tags = {pairs[at : at + widths.pair] for at in range(0, len(pairs), widths.pair)}
            for pair in {bytes(widths.pair), *tags}:
                wanted.setdefault(metric + pair, []).append(pairs)
    assert read(entries, ahead, widths.metric + widths.pair) == wanted
    assert len({(entry.row, entry.column) for entry in entries}) == len(entries)


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("seed", seeds(30, fast=5))
def test_compiled_and_python_entries_agree(seed: int, widths: Widths) -> None:
    series = many(random.Random(seed), widths)
    rows = own_rows(series, widths, compiled=True)
    assert rows == own_rows(series, widths, compiled=False)
    assert other_entries(rows, widths, compiled=True) == other_entries(rows, widths, compiled=False)


def test_a_thousand_hosts_cost_an_entry_each_and_a_few() -> None:
    hosts = [b"\0\0\1" + number.to_bytes(3, "big") for number in range(10, 1010)]
    rows = own_rows({b"met": [b"\0\0\2\0\0\1" + host for host in hosts]}, Widths())
    assert [row[3:9] for row in rows] == hosts
    others = other_entries(rows, Widths())
    assert [(entry.row[3:9], entry.column[:3], len(entry.value)) for entry in others] == [
        (bytes(6), SHARED, 12_000),
        (b"\0\0\2\0\0\1", SHARED, 12_000),
    ]
    assert {entry.column for entry in own_entries(rows)} == {OWN}
    assert [entry.column for entry in other_entries(rows[:1], Widths())] == [ALONE, ALONE]

"""Rollups and histograms from lines to cells: OpenTSDB's bytes, in its tables, through the journal like points."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.flaky_store import Fault
from tests.unit.ingest.parts import BASE, Parts, going, line
from tests.unit.ingest.summary_parts import ROLLUPS, RULES, VECTORS, contents, make_tables, name
from tsd.codec.names import Kind

LINES = [vector for vector in VECTORS if vector["kind"] in ("rollup", "histogram") and "line" in vector]


def place(vector: Mapping[str, Any]) -> tuple[str, str, str]:
    table = {"raw": "tsdb"}.get(vector.get("table", "raw"), vector.get("table", "raw"))
    return table, vector["row_hex"], vector["qualifier_hex"]


@pytest.mark.parametrize("again", [False, True], ids=["from memory", "from the journal"])
@pytest.mark.parametrize("vector", LINES, ids=[vector["line"] for vector in LINES])
async def test_line_is_stored_as_by_opentsdb(vector: dict[str, Any], again: bool, tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        await name(parts, "sys.cpu.user sys.lat", "web01 MAX SUM COUNT")
        taken = await parts.intake.take_summaries(vector["line"].encode() + b"\n")
        assert (taken.accepted, taken.rejects) == (1, [])
        if again:
            await parts.journal.wait_synced(taken.position)
            parts.writer.seal()
            parts.window().drop()
        assert await parts.writer.flush()
        assert (await contents(parts.store))[place(vector)] == vector["value_hex"]


async def test_lines_of_all_kinds_survive_a_crash_in_one_segment(tmp_path: Path) -> None:
    store = await make_tables()
    before = Parts(tmp_path, store, rules=RULES)
    before.journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.journal.run)
        await before.take(line(0, 1), line(1, 2))
        await before.intake.take_summaries(b"rollup 1h-sum m %d 5 host=a\nrollup bad\n" % BASE)
        await before.take(line(2, 3))
        taken = await before.intake.take_summaries(b"histogram m %d 0,1=2 host=a\n" % BASE)
        await before.journal.wait_synced(taken.position)
        nursery.cancel_scope.cancel()
    async with going(Parts(tmp_path, store, rules=RULES)) as after:
        assert after.ledger.received == 5
        assert await after.writer.flush()
        assert after.ledger.stored == 5
        cells = await contents(store)
    assert len(cells) == 3
    assert [value for (table, _, _), value in cells.items() if table == "r1h"] == ["05"]


async def test_summaries_wait_in_the_journal_during_an_outage(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_tables(), rules=RULES, metrics=False)) as parts:
        await parts.uids.find_or_assign(Kind.METRIC, [b"m"])
        parts.uids.drop_caches()
        parts.store.always = Fault.REFUSED
        lines = b"rollup 1h-sum m %d 5 host=a\nrollup 1h-sum typo %d 5 host=a\nrollup 1h-sum\n" % (BASE, BASE)
        taken = await parts.intake.take_summaries(lines)
        assert (taken.accepted, [reject.line for reject in taken.rejects]) == (2, [2])
        await parts.take(line(0, 1))
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert parts.ledger.refused == {"illegal_arguments": 1, "unknown_metrics": 1}
        assert len(await contents(parts.store)) == 2
        [kept] = (tmp_path / "refused").iterdir()
        assert kept.read_bytes().endswith(b"\nrollup 1h-sum typo %d 5 host=a\n" % BASE)


@pytest.mark.difference(
    "rollup-duplicates",
    topic="rollups",
    theirs="An integer and a float for one interval of a rollup make its row unreadable",
    ours="The newer one counts",
)
async def test_last_summary_of_an_interval_counts(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        for value in (b"7", b"2.5", b"300"):
            await parts.intake.take_summaries(b"rollup 1h-sum m %d %s host=a\n" % (BASE + 7, value))
        await parts.intake.take_summaries(
            b"histogram m %d 0,1=2 host=a\nhistogram m %d 0,1=2 host=a\n" % (BASE, BASE + 5)
        )
        assert await parts.writer.flush()
        cells = await contents(parts.store)
        assert parts.ledger.stored == 5
    assert sorted(cells.values())[0] == "012c"
    assert len(cells) == 3


async def test_a_codec_number_of_thousands_of_digits_costs_its_line_only(tmp_path: Path) -> None:
    """Regression: the error ended the connection, with the lines behind this one."""
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        bad = b"histogram m %d %s AAAA host=a\n" % (BASE, b"1" * 5000)
        taken = await parts.intake.take_summaries(bad + b"rollup 1h-sum m %d 5 host=a\n" % BASE)
        assert (taken.accepted, [reject.line for reject in taken.rejects]) == (1, [0])


async def test_reading_a_metric_writes_its_summaries(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_tables(), rules=RULES)) as parts:
        await parts.intake.take_summaries(b"rollup 1h-sum m %d 5 host=a\n" % BASE)
        assert await parts.writer.write_metric(b"other")
        assert await contents(parts.store) == {}
        assert await parts.writer.write_metric(b"m")
        assert len(await contents(parts.store)) == 1


async def test_raw_series_have_the_tag_if_configured(tmp_path: Path) -> None:
    rules = RULES._replace(rollups=ROLLUPS._replace(tag_raw=True))
    async with going(Parts(tmp_path, await make_tables(), rules=rules)) as parts:
        await parts.intake.take_summaries(b"rollup 1h-sum m %d 5 host=a\n" % BASE)
        assert await parts.writer.flush()
        assert isinstance((await parts.uids.find(Kind.TAGV, [b"RAW"]))[b"RAW"], bytes)

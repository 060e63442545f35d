"""The canary's rounds: a point is written and read back; a known trouble is not a lost point."""

from pathlib import Path

import pytest
import trio

from tests.flaky_store import Fault
from tests.unit.ingest.parts import Parts, going, make_store
from tsd.codec.names import Kind
from tsd.ingest.accepted import JOURNAL_FULL
from tsd.ingest.canary import Canary, Stage
from tsd.tables.opentsdb.series_rows import SeriesRows

NOW_S = 1356998400 + 125


async def written(parts: Parts, metric: bytes) -> bool:
    return await parts.writer.write_metric(metric)


async def forgotten(parts: Parts, metric: bytes) -> bool:
    """Report success and write nothing."""
    return True


def canary_of(parts: Parts, show: object = written, host: str = "web01", now_s: int = NOW_S) -> Canary:
    async def shown(metric: bytes) -> bool:
        return await show(parts, metric)  # type: ignore[no-any-return, operator]

    reader = SeriesRows(parts.store, "tsdb")
    return Canary(parts.intake, parts.resolver, reader, shown, host, "0123abcd", lambda: now_s * 1000 + 250)


async def test_round_ends_with_point_in_store(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:  # names are assigned all the same
        canary = canary_of(parts)
        await canary.run_round()
        assert (canary.missing, canary.trouble, canary.stage) == (0, "", Stage.IDLE)
        assert canary.statistics()[:2] == (1, 0)
        [((series, time), _)] = (await parts.stored()).items()
        assert time == NOW_S * 1000
        names = await parts.uids.find(Kind.METRIC, [b"tsd.canary"])
        assert series.startswith(names[b"tsd.canary"])  # type: ignore[arg-type]
        await canary.run_round()
        assert canary.statistics()[:2] == (2, 0)


async def test_illegal_host_name_is_replaced(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await canary_of(parts, host="röck & roll").run_round()
        found = await parts.uids.find(Kind.TAGV, [b"r_ck___roll", b"0123abcd"])
        assert all(isinstance(uid, bytes) for uid in found.values())


async def test_lost_point_is_missed(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts, forgotten)
        await canary.run_round()
        await canary.run_round()
        assert (canary.missing, canary.statistics()[:2]) == (2, (2, 2))
        assert await written(parts, b"tsd.canary")
        await canary.run_round()
        assert (canary.missing, canary.statistics()[:2]) == (0, (3, 2))


async def test_store_that_is_down_is_a_known_trouble(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts)
        await canary.run_round()
        parts.store.always = Fault.REFUSED
        await canary.run_round()
        assert canary.trouble
        parts.uids.drop_caches()
        await canary.run_round()
        assert canary.trouble == "refused by the test"
        assert (canary.missing, canary.statistics()[:2]) == (0, (1, 0))
        parts.store.always = Fault.NONE
        with trio.fail_after(60):
            while canary.statistics().rounds == 1:
                await canary.run_round()
                await trio.lowlevel.checkpoint()
        assert (canary.missing, canary.trouble) == (0, "")


@pytest.mark.parametrize("now_s", [-5000, 2**32])
async def test_impossible_time_of_the_clock_is_a_known_trouble(tmp_path: Path, now_s: int) -> None:
    """Regression: a clock set to the year 2106 ended the daemon."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts, now_s=now_s)
        await canary.run_round()
        assert str(now_s) in canary.trouble
        assert (canary.missing, canary.statistics()[:2]) == (0, (0, 0))


async def test_round_waits_for_backpressure_to_end(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts)
        parts.backpressure.hold(JOURNAL_FULL)
        await canary.run_round()
        assert (canary.trouble, parts.ledger.received) == (JOURNAL_FULL, 0)
        parts.backpressure.release(JOURNAL_FULL)

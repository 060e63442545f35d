"""The canary's round: a point goes the whole way, and what keeps it from that is told apart from its loss."""

from pathlib import Path

import pytest
import trio

from tests.unit.ingest.parts import Parts, going, make_store
from tests.wavering import Fault
from tsd.canary import Canary, Home, Stage
from tsd.codec.rowkey import Layout
from tsd.codec.uid import Kind

NOW_S = 1356998400 + 125


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsd.ingest.writer.FIRST_RETRY_S", 0.001)
    monkeypatch.setattr("tsd.ingest.writer.LAST_RETRY_S", 0.002)


async def written(parts: Parts, metric: bytes) -> bool:
    return await parts.writer.show(metric)


async def forgotten(parts: Parts, metric: bytes) -> bool:
    """A store that says that it has what it has not."""
    return True


def canary_of(parts: Parts, show: object = written, host: str = "web01") -> Canary:
    async def shown(metric: bytes) -> bool:
        return await show(parts, metric)  # type: ignore[no-any-return, operator]

    home = Home(parts.store, "tsdb", Layout(), parts.uids, shown)
    return Canary(parts.intake, home, host, "0123abcd", lambda: NOW_S * 1000 + 250)


async def test_a_round_ends_with_the_point_in_the_store(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store(), metrics=False)) as parts:  # whoever may bring new names
        canary = canary_of(parts)
        await canary.go_around()
        assert (canary.missing, canary.excuse, canary.stage) == (0, "", Stage.IDLE)
        assert canary.statistics()[:2] == (1, 0)
        [((series, time), _)] = (await parts.stored()).items()
        assert time == NOW_S * 1000
        names = await parts.uids.find(Kind.METRIC, [b"tsd.canary"])
        assert series.startswith(names[b"tsd.canary"])  # type: ignore[arg-type]
        await canary.go_around()
        assert canary.statistics()[:2] == (2, 0)


async def test_a_host_may_be_called_anything(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await canary_of(parts, host="röck & roll").go_around()
        found = await parts.uids.find(Kind.TAGV, [b"r_ck___roll", b"0123abcd"])
        assert all(isinstance(uid, bytes) for uid in found.values())


async def test_a_point_that_is_not_there_is_missed(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts, forgotten)
        await canary.go_around()
        await canary.go_around()
        assert (canary.missing, canary.statistics()[:2]) == (2, (2, 2))
        assert await written(parts, b"tsd.canary")
        await canary.go_around()
        assert (canary.missing, canary.statistics()[:2]) == (0, (3, 2))


async def test_a_store_that_is_away_is_an_excuse(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts)
        await canary.go_around()
        parts.store.always = Fault.REFUSED
        await canary.go_around()
        assert canary.excuse == "its window is not in the store"
        parts.uids.drop_caches()
        await canary.go_around()
        assert canary.excuse == "refused, as the test wants"
        assert (canary.missing, canary.statistics()[:2]) == (0, (1, 0))
        parts.store.always = Fault.NONE
        with trio.fail_after(60):
            while canary.statistics().rounds == 1:
                await canary.go_around()
                await trio.lowlevel.checkpoint()
        assert (canary.missing, canary.excuse) == (0, "")


async def test_nothing_is_taken_in_while_nobody_may_send(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        canary = canary_of(parts)
        parts.gate.hold("the journal is full")
        await canary.go_around()
        assert (canary.excuse, parts.ledger.received) == ("the journal is full", 0)
        parts.gate.release("the journal is full")

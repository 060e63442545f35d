"""The tables of entities in a whole daemon: written with the points, with newest values from memory."""

from pathlib import Path

import pytest

from tests.running import Running, running
from tsd.codec.entity.records import EntitySeries
from tsd.config.loader import Given
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import now_ms, read_config
from tsd.errors import BadConfig, WrongTable
from tsd.store.memory import MemoryStore
from tsd.tables.entities import Entities, Entity

CPU = EntitySeries(b"sys.cpu", ((b"cpu", b"0"),))
PAST_S = 1_500_000_000
SETTINGS = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}


def entities(daemon: Running) -> Entities:
    found = daemon.daemon.tables.entities
    assert found is not None
    return found


async def newest(daemon: Running) -> dict[bytes, dict[EntitySeries, list[tuple[int, int | float]]]]:
    page = await entities(daemon).newest(b"", None, limit=100)
    assert page.next_start is None
    return {each.name: dict(each.series) for each in page.entities}


def put(time_s: int, value: str, *, host: str = "web01") -> bytes:
    return f"put sys.cpu {time_s} {value} cpu=0 host={host}\n".encode()


async def test_points_of_past_and_open_hours_are_found(tmp_path: Path) -> None:
    now_s = now_ms() // 1000
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(
            put(PAST_S, "7") + put(PAST_S - 60, "-300") + put(now_s, "2.5") + put(now_s, "1", host="db")
        )
        await daemon.daemon.ingest.writer.flush_due()
        assert await newest(daemon) == {b"db": {CPU: [(now_s * 1000, 1)]}, b"web01": {CPU: [(now_s * 1000, 2.5)]}}
        await daemon.send_lines(put(PAST_S + 60, "9") + b"put other 1500000000 1 dc=eu\n")
        await daemon.daemon.ingest.writer.flush()
        stored = await entities(daemon).read(b"web01", 0)
        assert stored is not None
        assert stored.series == {
            CPU: [((PAST_S - 60) * 1000, -300), (PAST_S * 1000, 7), ((PAST_S + 60) * 1000, 9), (now_s * 1000, 2.5)]
        }
    async with running(tmp_path, SETTINGS) as daemon:
        assert await newest(daemon) == {b"db": {CPU: [(now_s * 1000, 1)]}, b"web01": {CPU: [(now_s * 1000, 2.5)]}}


async def test_newest_values_of_memory_and_table_come_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(b"".join(put(PAST_S, "1", host=f"web{at}") for at in (0, 2, 4)))
        await daemon.daemon.ingest.writer.flush()
    now_s = now_ms() // 1000
    async with running(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(b"".join(put(now_s, "2", host=f"web{at}") for at in (1, 2, 3)))
        await daemon.daemon.ingest.writer.flush_due()
        found: list[Entity] = []
        start: bytes | None = b""
        while start is not None:
            page = await entities(daemon).newest(start, None, limit=2)
            found += page.entities
            start = page.next_start
    assert [(each.name, each.series[CPU][0][1]) for each in found] == [
        (b"web%d" % at, value) for at, value in enumerate((1, 2, 2, 2, 1))
    ]


async def test_salted_rows_of_periods_answer_alike(tmp_path: Path) -> None:
    keyed = {**SETTINGS, "tsd.entity.period": "1d", "tsd.entity.salt": "5"}
    async with running(tmp_path, keyed) as daemon:
        days = [put(PAST_S + day * 86_400, f"{day}", host=host) for day in range(4) for host in ("web01", "web02")]
        assert b"illegal argument" in await daemon.send_lines(b"meta a#1 k=v\n")
        await daemon.send_lines(b"".join(days) + b"meta web01 rack=r1\n")
        await daemon.daemon.ingest.writer.flush()
        found = await entities(daemon).read(b"web01", PAST_S * 1000 + 1)
        assert found is not None
        assert found.metadata == {"rack": "r1"}
        assert found.series == {CPU: [((PAST_S + day * 86_400) * 1000, day) for day in (1, 2, 3)]}
        newest_one = {CPU: [((PAST_S + 3 * 86_400) * 1000, 3)]}
        assert await newest(daemon) == {b"web01": newest_one, b"web02": newest_one}


@pytest.mark.parametrize(
    ("key", "value", "wanted"), [("tsd.entity.period", "2d", "86400s"), ("tsd.entity.salt", "0", "5")]
)
async def test_a_start_with_other_row_keys_than_the_stored_ones_is_refused(
    tmp_path: Path, key: str, value: str, wanted: str
) -> None:
    keyed = {**SETTINGS, "tsd.entity.period": "1d", "tsd.entity.salt": "5"}
    async with running(tmp_path, keyed) as daemon:
        await daemon.send_lines(put(PAST_S, "7"))
    with pytest.RaisesGroup(
        pytest.RaisesExc(WrongTable, match=rf"{key}: got .*, wanted '{wanted}'"), flatten_subgroups=True
    ):
        async with running(tmp_path, {**keyed, key: value}):
            pass
    async with running(tmp_path, keyed) as daemon:
        assert await newest(daemon) == {b"web01": {CPU: [(PAST_S * 1000, 7)]}}


@pytest.mark.parametrize("period", ["forever", "1x", "-1d"])
def test_an_invalid_period_is_refused(period: str) -> None:
    with pytest.raises(BadConfig, match=r"tsd\.entity\.period"):
        read_config([Given("test", "tsd.entity.period", period)])


def test_an_engine_without_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = read_config(Given("test", key, value) for key, value in SETTINGS.items())
    store = MemoryStore(now_ms)
    monkeypatch.setattr(MemoryStore, "versioned_cells", None)
    with pytest.raises(BadConfig, match="embedded"):
        build_configured_tables(config, store, now_ms)

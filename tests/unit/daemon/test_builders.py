"""How long points of open hours are held, and what `tsd check-config` checks."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tsd.config.settings import Backend, Config
from tsd.daemon.builders import check_files, held_s
from tsd.errors import BadConfig

MINUTE = Config(flush_interval_ms=60_000)


def tables(*, holds_hours: bool = True, entities: object = None) -> Any:
    return SimpleNamespace(holds_hours=holds_hours, entities=entities)


@pytest.mark.parametrize("config", [Config(), MINUTE])
def test_points_of_a_store_of_its_own_are_held_until_the_hour_is_over(config: Config) -> None:
    assert held_s(config, tables(entities=object()), shared=False) == math.inf
    assert held_s(config, tables(holds_hours=False), shared=False) == 0
    assert held_s(replace(config, hold_open_hours=False), tables(), shared=False) == 0


def test_points_of_shared_tables_are_held_for_a_long_interval() -> None:
    assert held_s(Config(flush_interval_ms=10_000), tables(), shared=True) == 0
    assert held_s(MINUTE, tables(), shared=True) == 60
    assert held_s(MINUTE, tables(entities=object()), shared=True) == 0
    assert held_s(MINUTE, tables(holds_hours=False), shared=True) == 0


@pytest.mark.parametrize("backend", [Backend.HBASE, Backend.CASSANDRA, Backend.BIGTABLE])
def test_points_are_held_by_default_where_their_rows_are_shared(backend: Backend) -> None:
    shared = Config(backend=backend)
    assert held_s(shared, tables(), shared=True) == shared.write_interval_ms / 1000 > 0


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(backend=Backend.HBASE, entity=True),
        Config(backend=Backend.HBASE, join_points=False),
        Config(backend=Backend.HBASE, hold_open_hours=False),
        Config(backend=Backend.CASSANDRA, layout="kairosdb"),
        Config(backend=Backend.BIGTABLE, layout="heroic"),
    ],
)
def test_windows_that_are_written_whole_are_shorter_by_default(config: Config) -> None:
    assert config.write_interval_ms < Config(backend=Backend.HBASE).write_interval_ms


@pytest.mark.parametrize("bind", ["tsd..example.com", "a" * 64, "999.1.1.1"])
def test_text_that_is_no_address_is_a_problem_of_the_setting(bind: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_files(Config(bind=bind))
    [problem] = caught.value.problems
    assert problem.startswith(f"tsd.network.bind: got {bind!r}, wanted an address: ")

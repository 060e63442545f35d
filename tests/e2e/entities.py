"""Read the tables of entities without a daemon: no process may have an embedded store open."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import trio

from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import opened_store, versioned_cells
from tsd.tables.entities import Entity
from tsd.tables.entity.tables import EntityTables

Points = list[tuple[int, int | float]]  # pairs of a time in ms and a value
Series = tuple[str, str]  # entity and metric: no test has several series of a metric


class StoredEntities(NamedTuple):
    """What both tables hold."""

    points: dict[Series, Points]
    newest: dict[Series, Points]
    metadata: dict[str, dict[str, str]]  # of entities with points


def stored_entities(folder: Path, settings: Mapping[str, str]) -> StoredEntities:
    """Return all points and the newest values of the first thousand entities."""
    given = {"tsd.storage.path": str(folder), **settings}
    config, _ = read_config(Given("test", key, value) for key, value in given.items())

    async def read() -> StoredEntities:
        async with opened_store(config) as store:
            tables = EntityTables(versioned_cells(config, store))
            found = StoredEntities({}, {}, {})
            page = await tables.newest(b"", None, limit=1000)
            assert page.next_start is None
            for entity in page.entities:
                found.newest.update(_series(entity))
                whole = await tables.read(entity.name, 0)
                assert whole is not None, entity
                found.points.update(_series(whole))
                if whole.metadata:
                    found.metadata[entity.name.decode()] = dict(whole.metadata)
            return found

    return trio.run(read)


def _series(entity: Entity) -> dict[Series, Points]:
    return {(entity.name.decode(), series.metric.decode()): points for series, points in entity.series.items()}

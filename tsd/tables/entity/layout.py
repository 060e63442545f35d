"""Builds the parts of the tables of entities from the settings."""

from collections.abc import Callable
from dataclasses import replace

from tsd.config.loader import name_rules
from tsd.config.retention import parse_rules
from tsd.config.settings import Config
from tsd.store import VersionedCells
from tsd.tables import Tables
from tsd.tables.entity.catalog import EntityCatalog
from tsd.tables.entity.deleting import EntityDeleter, EntityReader
from tsd.tables.entity.newest import CheckName, NewestValues, any_name
from tsd.tables.entity.removal import EntityRemoval
from tsd.tables.entity.retention import EntityRetention, Expiry
from tsd.tables.entity.rows import check_name
from tsd.tables.entity.tables import ENTITIES, NEWEST, EntityTables
from tsd.tables.entity.writer import EntityWriter


def with_entities(
    config: Config, cells: VersionedCells, tables: Tables, now_ms: Callable[[], int], *, required: bool
) -> Tables:
    """Return a layout's tables whose parts also write to those of entities and delete from them. `required`: the store
    does not make them."""
    tag, check = config.entity_tag.encode("latin-1"), name_check(config)
    newest = NewestValues(tag, check, tables.text_of)
    removal, deleter = EntityRemoval(cells, newest), tables.deleter
    expiry = make_expiry(config, now_ms)
    entities = EntityTables(cells, newest, expiry.is_kept if expiry.ages_s else None, check)
    names = (ENTITIES.name, NEWEST.name) if required else ()
    return replace(
        tables,
        catalog=EntityCatalog(tables.catalog, entities, config.entity_tag, now_ms),
        writer=EntityWriter(tables.writer, cells, newest, extra=name_rules(config).extra),
        reader=EntityReader(tables.reader, removal, tag),
        deleter=None if deleter is None else EntityDeleter(deleter, tables.reader, removal, tag),
        entities=entities,
        required=(*tables.required, *names),
    )


def name_check(config: Config) -> CheckName:
    """Return what raises BadLine for a name of an entity that the configured row keys cannot have."""
    return check_name if config.entity_period_s or config.entity_salt else any_name


def make_expiry(config: Config, now_ms: Callable[[], int]) -> Expiry:
    """Return how long points are kept."""
    return Expiry(parse_rules(config.retention_rules), lambda: now_ms() // 1000)


def make_retention(config: Config, cells: VersionedCells, now_ms: Callable[[], int]) -> EntityRetention:
    """Return the retention of the configuration's rules."""
    return EntityRetention(cells, make_expiry(config, now_ms))

"""Builds the layout's `Tables`."""

import re
from collections.abc import Callable
from typing import NamedTuple

import trio

from tsd.codec.putline import NameRules
from tsd.errors import BadConfig, StoreDown, StoreError
from tsd.lazy import LazyLogger
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.kairosdb.catalog import KairosCatalog
from tsd.tables.kairosdb.index import IndexRows
from tsd.tables.kairosdb.reader import KairosReader
from tsd.tables.kairosdb.schema import TABLES as TABLES
from tsd.tables.kairosdb.series import KairosResolver
from tsd.tables.kairosdb.services import KairosServices
from tsd.tables.kairosdb.tables import KairosTables
from tsd.tables.kairosdb.writer import KairosWriter

log = LazyLogger(__name__)

CHECK_S = 5.0  # between two attempts to find the tables


class KairosTableSettings(NamedTuple):
    """How the tables are used."""

    keyspace: str
    shared: bool  # other programs write to them and delete from them
    tag_indexed: frozenset[str]  # metrics with rows in tag_indexed_row_keys; `*`: all
    creates_metrics: bool
    names: NameRules


def tag_indexed(text: str) -> frozenset[str]:
    """Return the metrics of a setting.

    >>> sorted(tag_indexed("a.b, c"))
    ['a.b', 'c']
    """
    return frozenset(filter(None, re.split(r"[\s,]+", text)))


def make_tables(store: Store, keyspace: str, now_ms: Callable[[], int]) -> KairosTables:
    """Return the tables. Raise BadConfig."""
    if store.cql is None:
        raise BadConfig(["tsd.storage.layout: kairosdb requires tsd.storage.backend = cassandra"])
    return KairosTables(store.cql, keyspace, now_ms)


def build(store: Store, settings: KairosTableSettings, now_ms: Callable[[], int]) -> Tables:
    """Build the layout's `Tables`. Raise BadConfig."""
    tables = make_tables(store, settings.keyspace, now_ms)
    chosen = settings.tag_indexed
    index = IndexRows(tables, by_tag=lambda metric: "*" in chosen or metric in chosen)
    resolver = KairosResolver(tables, creates_metrics=settings.creates_metrics)
    reader = KairosReader(tables, index, shared=settings.shared, is_known=resolver.knows)
    writer = KairosWriter(tables, index, settings.names)

    async def check() -> None:
        await tables.check()

    def drop_caches() -> None:
        index.forget()
        resolver.forget()

    async def keep_index() -> None:
        await find_tables(tables)
        await index.keep()

    return Tables(
        KairosCatalog(tables, now_ms),
        reader,
        series_reader=reader,
        resolver=resolver,
        writer=writer,
        check=check,
        drop_caches=drop_caches,
        statistics=list,
        deleter=reader,
        has_ttl=True,
        has_texts=True,
        services=KairosServices(tables),
        tasks={"index": keep_index},
    )


async def find_tables(tables: KairosTables) -> None:
    """Return once the tables are found in order. Log what is wrong with them, once."""
    said = ""
    while True:
        try:
            await tables.spec()
        except StoreDown:
            pass
        except StoreError as error:
            if str(error) != said:
                said = str(error)
                log.error("kairosdb.tables_unusable", error=said)
        else:
            return
        await trio.sleep(CHECK_S)

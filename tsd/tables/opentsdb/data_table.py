"""A table of points or rollups, with its store and the layout of its row keys."""

from typing import NamedTuple

from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.config.loader import key_layout
from tsd.config.settings import Config
from tsd.store import Store


class DataTable(NamedTuple):
    """A table of OpenTSDB in a store: the data table, or one of rollups, whose row keys have the same layout."""

    store: Store
    name: str
    layout: KeyLayout  # of its row keys


def configured_data_table(config: Config, store: Store) -> DataTable:
    """Return the data table that a configuration names."""
    return DataTable(store, config.data_table, key_layout(config))

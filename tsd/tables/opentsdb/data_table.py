"""The table of raw points, as what works on its rows receives it."""

from typing import NamedTuple

from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.config.loader import Config, key_layout
from tsd.store import Store


class DataTable(NamedTuple):
    """OpenTSDB's table of raw points in a store."""

    store: Store
    name: str
    layout: KeyLayout  # of its row keys


def configured_data_table(config: Config, store: Store) -> DataTable:
    """Return the data table that a configuration names."""
    return DataTable(store, config.data_table, key_layout(config))

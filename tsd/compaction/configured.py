"""Compactors as the configuration has them."""

from collections.abc import Callable

from tsd.codec.merge import MergeRules
from tsd.compaction.step import REST_MS, RowCompactor
from tsd.config import Backend, Config, layout
from tsd.errors import CorruptRow
from tsd.store import Store


def row_compactor(
    config: Config,
    store: Store,
    now_ms: Callable[[], int],
    on_corrupt: Callable[[CorruptRow], None],
    *,
    dry: bool = False,
) -> RowCompactor:
    """One for the data table."""
    return RowCompactor(
        store,
        config.data_table,
        layout(config),
        MergeRules(fix_duplicates=config.fix_duplicates),
        now_ms,
        on_corrupt,
        rest_ms=0 if config.backend is Backend.EMBEDDED else REST_MS,  # the embedded store's stamps rise
        dry=dry,
    )

"""Compactors as the configuration has them."""

from collections.abc import Callable

from tsd.codec.merge import MergeRules
from tsd.compaction.pace import Pace, PacedCompactor, tell
from tsd.compaction.queue import RowQueue
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


def paced_compactor(
    config: Config, store: Store, now_ms: Callable[[], int], hindered: Callable[[], bool]
) -> PacedCompactor | None:
    """That of a daemon; None where it is switched off."""
    if not config.enable_compaction:
        return None
    return PacedCompactor(
        RowQueue(layout(config), config.compaction_queue, now_ms() // 1000),
        row_compactor(config, store, now_ms, tell),
        Pace(
            config.compaction_interval_s,
            config.compaction_threshold,
            config.compaction_ceiling,
            config.compaction_speed,
        ),
        hindered,
        lambda: now_ms() // 1000,
    )

"""New series → leaves of every enabled tree, as `tsd.core.tree.enable_processing` wants."""

from collections.abc import Callable, Sequence

import structlog

from tsd.codec.uid import Widths
from tsd.errors import CorruptRow, NoSuchName
from tsd.metadata.described import UidMetas
from tsd.metadata.naming import named_series
from tsd.metadata.trees import Definition, NoSuchTree, Trees
from tsd.uids import Uids

log = structlog.get_logger(__name__)

RULES_S = 60  # for so long trees are as they were read


class Grower:
    """Puts series into trees."""

    def __init__(self, trees: Trees, uids: Uids, metas: UidMetas, widths: Widths, now_s: Callable[[], int]) -> None:
        self._trees = trees
        self._uids = uids
        self._metas = metas
        self._widths = widths
        self._now_s = now_s
        self._definitions: list[Definition] = []
        self._read_s: int | None = None

    async def plant(self, tsuids: Sequence[bytes]) -> None:
        """Put series into every tree that is enabled. Raises StoreError; then it may be repeated."""
        definitions = await self._enabled()
        if not definitions:
            return
        for tsuid in tsuids:
            try:
                series = await named_series(self._uids, self._metas, self._widths, tsuid)
                for definition in definitions:
                    await self._trees.plant(definition, series)
            except (NoSuchName, CorruptRow) as error:  # points are stored all the same
                log.warning("a series is in no tree", tsuid=tsuid.hex(), because=str(error))

    async def _enabled(self) -> list[Definition]:
        """The trees that take series in. Raises StoreError."""
        now = self._now_s()
        if self._read_s is None or now - self._read_s >= RULES_S:
            found = []
            for tree_id in await self._trees.ids():
                try:
                    definition = await self._trees.get(tree_id)
                except (NoSuchTree, CorruptRow) as error:
                    log.warning("a tree cannot be read", tree=tree_id, because=str(error))
                    continue
                if definition.tree.enabled:
                    found.append(definition)
            self._definitions, self._read_s = found, now
        return self._definitions

"""OpenTSDB's tree table: definitions, rules, branches and leaves (FORMATS.md §10). Inserts new series into trees."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tsd.codec.metadata import LAST_TREE, ROOT, Branch, Leaf, Rule, Tree
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import split_tsuid
from tsd.codec.opentsdb.tree import (
    BRANCH,
    COLLISION_PREFIX,
    LEAF_PREFIX,
    NOT_MATCHED_PREFIX,
    RULE_PREFIX,
    TREE,
    branch_row,
    collision_row,
    decode_branch,
    decode_leaf,
    decode_rule,
    decode_tree,
    encode_branch,
    encode_leaf,
    encode_rule,
    encode_tree,
    leaf_column,
    not_matched_row,
    rule_column,
    tree_row,
)
from tsd.errors import CorruptRow, NoSuchName, TsdError
from tsd.lazy import LazyLogger
from tsd.store import Cell, Put, Store, scan
from tsd.store.cells import prefix_end
from tsd.tables.catalog import BranchContents, NoSuchTree, TreeDefinition
from tsd.tables.opentsdb.metadata import UidMetas, edit, named, read
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.tree_rules import NamedSeries, Placed, place

log = LazyLogger(__name__)

HASH_BYTES = 4
RELOAD_S = 60  # between two reads of the definitions


class TreeTable:
    """The trees of one tree table."""

    def __init__(
        self, store: Store, table: str, uids: Uids, metas: UidMetas, widths: Widths, now_s: Callable[[], int]
    ) -> None:
        self._store = store
        self._table = table
        self._uids = uids
        self._metas = metas
        self._widths = widths
        self._now_s = now_s

    async def ids(self) -> list[int]:
        """Return the ids of all trees. Raise StoreError."""
        return [
            int.from_bytes(row.key, "big")
            async for rows in scan(self._store, self._table, columns=[TREE])
            for row in rows
            if len(row.key) == len(tree_row(1))
        ]

    async def get(self, tree_id: int) -> TreeDefinition:
        """Return a tree. Raise NoSuchTree, StoreError, CorruptRow."""
        row = tree_row(tree_id)
        cells = (await self._store.get(self._table, [row])).get(row, [])
        tree = [decode_tree(cell.value) for cell in cells if cell.column == TREE]
        if not tree:
            raise NoSuchTree(f"Unable to locate tree: {tree_id}")
        rules = [decode_rule(cell.value) for cell in cells if cell.column.startswith(RULE_PREFIX)]
        return TreeDefinition(tree_id, tree[0], sorted(rules, key=lambda rule: (rule.level, rule.order)))

    async def create(self, tree: Tree) -> int:
        """Create a tree, and return its id. Raise StoreError, and TsdError if every id is taken."""
        value = encode_tree(tree._replace(created_s=self._now_s()))
        first = max(await self.ids(), default=0) + 1
        for tree_id in range(first, LAST_TREE + 1):
            [made] = await self._store.create(self._table, [Put(tree_row(tree_id), TREE, value)])
            if made:
                return tree_id
        raise TsdError("Exhausted all Tree IDs")

    async def edit(self, tree_id: int, change: Callable[[Tree], Tree]) -> bool:
        """Change a tree, and return whether it differs. Raise NoSuchTree, StoreError, CorruptRow."""
        return await self._edit(
            tree_row(tree_id),
            TREE,
            lambda before: encode_tree(change(decode_tree(_existing(before, f"Unable to locate tree: {tree_id}")))),
        )

    async def edit_rule(self, tree_id: int, level: int, order: int, change: Callable[[Rule | None], Rule]) -> bool:
        """Change or create a rule, and return whether it differs. Raise StoreError, CorruptRow, and what `change`
        raises."""
        return await self._edit(
            tree_row(tree_id),
            rule_column(level, order),
            lambda before: encode_rule(change(decode_rule(before) if before else None)),
        )

    async def _edit(self, row: bytes, column: bytes, change: Callable[[bytes | None], bytes]) -> bool:
        stored: bytes | None = None

        def keep_stored(before: bytes | None) -> bytes:
            nonlocal stored
            stored = before
            return change(before)

        return await edit(self._store, self._table, row, column, keep_stored) != stored

    async def delete_rules(self, tree_id: int, places: Iterable[tuple[int, int]] | None = None) -> None:
        """Delete some rules, by level and order, or all. Raise StoreError."""
        row = tree_row(tree_id)
        columns = None if places is None else {rule_column(*place) for place in places}
        cells = (await self._store.get(self._table, [row])).get(row, [])
        await self._delete(
            row,
            [
                cell
                for cell in cells
                if cell.column.startswith(RULE_PREFIX) and (columns is None or cell.column in columns)
            ],
        )
        await self._store.sync()

    async def delete(self, tree_id: int, *, definition: bool) -> None:
        """Delete the contents of a tree, and with `definition` the tree. Raise StoreError."""
        row = tree_row(tree_id)
        async for rows in scan(self._store, self._table, row, prefix_end(row)):
            for key, cells in rows:
                kept = () if definition or key != row else (TREE, RULE_PREFIX)
                await self._delete(key, [cell for cell in cells if not cell.column.startswith(kept or b"\0")])
        await self._store.sync()

    async def _delete(self, row: bytes, cells: Iterable[Cell]) -> None:
        for cell in cells:
            await self._store.delete(self._table, {row: [cell.column]}, up_to_ms=cell.time_ms)

    def branch_id(self, tree_id: int, names: Iterable[str] = ()) -> bytes:
        """Return the row of a branch, by the names below the root."""
        return branch_row(tree_id, names)

    async def open(self, branch_id: bytes) -> BranchContents:
        """Return a branch, its leaves and the branches right below it. Raise NoSuchTree, StoreError."""
        row = branch_id
        branch: Branch | None = None
        leaves: list[Leaf] = []
        below: list[tuple[bytes, Branch]] = []
        async for rows in scan(self._store, self._table, row, prefix_end(row)):
            for key, cells in rows:
                if len(key) not in (len(row), len(row) + HASH_BYTES):
                    continue
                for cell in cells:
                    if cell.column == BRANCH:
                        found = decode_branch(cell.value)
                        if key == row:
                            branch = found
                        else:
                            below.append((key, found))
                    elif key == row and cell.column.startswith(LEAF_PREFIX):
                        leaves.append(decode_leaf(cell.value))
        if branch is None:
            raise NoSuchTree(
                f"Unable to locate branch '{row.hex().upper()}' for tree '{int.from_bytes(row[:2], 'big')}'"
            )
        leaves.sort(key=lambda leaf: leaf.display_name)
        below.sort(key=lambda one: one[1].path[-1])
        return BranchContents(row, branch, leaves, below)

    async def failures(self, tree_id: int, series: Sequence[bytes], *, collisions: bool) -> Mapping[bytes, str]:
        """Return why series are not in a tree, by TSUID: all series, or some. Raise StoreError."""
        row = collision_row(tree_id) if collisions else not_matched_row(tree_id)
        prefix = COLLISION_PREFIX if collisions else NOT_MATCHED_PREFIX
        cells = (await self._store.get(self._table, [row])).get(row, [])
        found = {cell.column[len(prefix) :]: cell.value.decode("utf-8", "replace") for cell in cells}
        return {tsuid: text for tsuid, text in found.items() if not series or tsuid in series}

    async def insert(self, definition: TreeDefinition, series: NamedSeries) -> Placed:
        """Insert a series into a tree at the branch that the rules give. Raise StoreError."""
        placed = place(series, definition.rules)
        tsuid = bytes.fromhex(series.tsuid)
        tree_id, tree = definition.tree_id, definition.tree
        if not placed.is_placed or (tree.strict_match and placed.missed):
            if tree.store_failures:
                text = "; ".join(placed.messages).encode()
                failed = Put(not_matched_row(tree_id), NOT_MATCHED_PREFIX + tsuid, text)
                await self._store.put(self._table, [failed])
            return placed
        names = placed.path[1:-1]
        leaf = Leaf(placed.path[-1], series.tsuid)
        puts = [
            Put(branch_row(tree_id, names[:depth]), BRANCH, encode_branch(Branch((ROOT, *names[:depth]))))
            for depth in range(len(names) + 1)
        ]
        await self._store.create(self._table, puts)
        row, column = branch_row(tree_id, names), leaf_column(leaf.display_name)
        [made] = await self._store.create(self._table, [Put(row, column, encode_leaf(leaf))])
        if not made and tree.store_failures:
            await self._record_collision(tree_id, tsuid, row, column)
        return placed

    async def _record_collision(self, tree_id: int, tsuid: bytes, row: bytes, column: bytes) -> None:
        """Record that another series already has the leaf."""
        cell = await read(self._store, self._table, row, column)
        try:
            first = decode_leaf(cell.value).tsuid if cell else ""
        except CorruptRow:
            return
        if first and first != tsuid.hex().upper():
            taken = Put(collision_row(tree_id), COLLISION_PREFIX + tsuid, first.encode())
            await self._store.put(self._table, [taken])

    async def describe(self, series: bytes) -> NamedSeries:
        """Return the names of a series and their custom metadata. Raise BadLine for an invalid TSUID, NoSuchName,
        StoreError, CorruptRow."""
        split = split_tsuid(self._widths, series)
        [metric] = await named(self._uids, self._metas, Kind.METRIC, [split.metric])
        tagks = await named(self._uids, self._metas, Kind.TAGK, [tagk for tagk, _ in split.pairs])
        tagvs = await named(self._uids, self._metas, Kind.TAGV, [tagv for _, tagv in split.pairs])
        names = [tagk.name for tagk in tagks]
        return NamedSeries(
            series.hex().upper(),
            metric.name,
            [(tagk, tagv.name) for tagk, tagv in zip(names, tagvs, strict=True)],
            metric.meta.custom or {},
            {tagk: one.meta.custom or {} for tagk, one in zip(names, tagks, strict=True)},
            {tagk: one.meta.custom or {} for tagk, one in zip(names, tagvs, strict=True)},
        )


def _existing(before: bytes | None, why: str) -> bytes:
    if before is None:
        raise NoSuchTree(why)
    return before


class TreeBuilder:
    """Inserts new series into the enabled trees, for `tsd.core.tree.enable_processing`."""

    def __init__(self, trees: TreeTable, now_s: Callable[[], int]) -> None:
        self._trees = trees
        self._now_s = now_s
        self._definitions: list[TreeDefinition] = []
        self._loaded_s: int | None = None

    async def insert(self, tsuids: Sequence[bytes]) -> None:
        """Insert series into every enabled tree. Raise StoreError, and may then be repeated."""
        definitions = await self._enabled()
        if not definitions:
            return
        for tsuid in tsuids:
            try:
                series = await self._trees.describe(tsuid)
                for definition in definitions:
                    await self._trees.insert(definition, series)
            except (NoSuchName, CorruptRow) as error:  # the points of the series are stored nevertheless
                log.warning("tree.series_skipped", tsuid=tsuid.hex(), error=str(error))

    async def _enabled(self) -> list[TreeDefinition]:
        """Return the enabled trees. Raise StoreError."""
        now = self._now_s()
        if self._loaded_s is None or now - self._loaded_s >= RELOAD_S:
            found = []
            for tree_id in await self._trees.ids():
                try:
                    definition = await self._trees.get(tree_id)
                except (NoSuchTree, CorruptRow) as error:
                    log.warning("tree.unreadable", tree=tree_id, error=str(error))
                    continue
                if definition.tree.enabled:
                    found.append(definition)
            self._definitions, self._loaded_s = found, now
        return self._definitions

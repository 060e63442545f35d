"""Trees: their definitions, rules, branches and leaves in the tree table (FORMATS.md §10)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.rowkey import after
from tsd.codec.tree import (
    BRANCH,
    COLLISION_PREFIX,
    LAST_TREE,
    LEAF_PREFIX,
    NOT_MATCHED_PREFIX,
    ROOT,
    RULE_PREFIX,
    TREE,
    Branch,
    Leaf,
    Rule,
    Tree,
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
from tsd.errors import CorruptRow, TsdError
from tsd.metadata.edit import edit, read
from tsd.metadata.tree_rules import NamedSeries, Placed, place
from tsd.store import Cell, Put, Store, scan

HASH_BYTES = 4


class NoSuchTree(TsdError):
    """A tree, rule or branch that is not there."""


class Definition(NamedTuple):
    """A tree with its rules."""

    tree_id: int
    tree: Tree
    rules: Sequence[Rule]  # by level and order


class Opened(NamedTuple):
    """A branch with what is in it."""

    row: bytes
    branch: Branch
    leaves: list[Leaf]
    branches: list[tuple[bytes, Branch]]  # by their rows


class Trees:
    """The tree table."""

    def __init__(self, store: Store, table: str, now_s: Callable[[], int]) -> None:
        self._store = store
        self._table = table
        self._now_s = now_s

    async def ids(self) -> list[int]:
        """The trees there are. Raises StoreError."""
        return [
            int.from_bytes(row.key, "big")
            async for rows in scan(self._store, self._table, columns=[TREE])
            for row in rows
            if len(row.key) == len(tree_row(1))
        ]

    async def get(self, tree_id: int) -> Definition:
        """A tree; raises NoSuchTree, StoreError, CorruptRow."""
        row = tree_row(tree_id)
        cells = (await self._store.get(self._table, [row])).get(row, [])
        tree = [decode_tree(cell.value) for cell in cells if cell.column == TREE]
        if not tree:
            raise NoSuchTree(f"Unable to locate tree: {tree_id}")
        rules = [decode_rule(cell.value) for cell in cells if cell.column.startswith(RULE_PREFIX)]
        return Definition(tree_id, tree[0], sorted(rules, key=lambda rule: (rule.level, rule.order)))

    async def create(self, tree: Tree) -> int:
        """A new tree's id. Raises StoreError, and TsdError where every id is taken."""
        value = encode_tree(tree._replace(created_s=self._now_s()))
        first = max(await self.ids(), default=0) + 1
        for tree_id in range(first, LAST_TREE + 1):
            [made] = await self._store.create(self._table, [Put(tree_row(tree_id), TREE, value)])
            if made:
                return tree_id
        raise TsdError("Exhausted all Tree IDs")

    async def change(self, tree_id: int, change: Callable[[Tree], Tree]) -> bool:
        """Whether `change` changes a tree. Raises NoSuchTree, StoreError, CorruptRow."""
        return await self._change(
            tree_row(tree_id),
            TREE,
            lambda before: encode_tree(change(decode_tree(_there(before, f"Unable to locate tree: {tree_id}")))),
        )

    async def put_rule(self, tree_id: int, level: int, order: int, change: Callable[[Rule | None], Rule]) -> bool:
        """Whether `change` changes a rule, or makes it. Raises StoreError, CorruptRow, and what `change` raises."""
        return await self._change(
            tree_row(tree_id),
            rule_column(level, order),
            lambda before: encode_rule(change(decode_rule(before) if before else None)),
        )

    async def _change(self, row: bytes, column: bytes, change: Callable[[bytes | None], bytes]) -> bool:
        was: list[bytes | None] = []

        def noted(before: bytes | None) -> bytes:
            was.append(before)
            return change(before)

        return await edit(self._store, self._table, row, column, noted) != was[-1]

    async def delete_rules(self, tree_id: int, wanted: Iterable[tuple[int, int]] | None = None) -> None:
        """Delete some rules, by level and order, or all. Raises StoreError."""
        row = tree_row(tree_id)
        columns = None if wanted is None else {rule_column(*place) for place in wanted}
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
        """Delete what is in a tree, and with `definition` the tree. Raises StoreError."""
        row = tree_row(tree_id)
        async for rows in scan(self._store, self._table, row, after(row)):
            for key, cells in rows:
                kept = () if definition or key != row else (TREE, RULE_PREFIX)
                await self._delete(key, [cell for cell in cells if not cell.column.startswith(kept or b"\0")])
        await self._store.sync()

    async def _delete(self, row: bytes, cells: Iterable[Cell]) -> None:
        for cell in cells:
            await self._store.delete(self._table, {row: [cell.column]}, up_to_ms=cell.time_ms)

    async def open(self, row: bytes) -> Opened:
        """A branch by its row, with its leaves and the branches right below it. Raises NoSuchTree, StoreError."""
        branch: Branch | None = None
        leaves: list[Leaf] = []
        below: list[tuple[bytes, Branch]] = []
        async for rows in scan(self._store, self._table, row, after(row)):
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
        return Opened(row, branch, leaves, below)

    async def failures(self, tree_id: int, tsuids: Sequence[bytes], *, collisions: bool) -> Mapping[bytes, str]:
        """Why series are not in a tree, by TSUID: all, or of some. Raises StoreError."""
        row = collision_row(tree_id) if collisions else not_matched_row(tree_id)
        prefix = COLLISION_PREFIX if collisions else NOT_MATCHED_PREFIX
        cells = (await self._store.get(self._table, [row])).get(row, [])
        found = {cell.column[len(prefix) :]: cell.value.decode("utf-8", "replace") for cell in cells}
        return {tsuid: text for tsuid, text in found.items() if not tsuids or tsuid in tsuids}

    async def plant(self, definition: Definition, series: NamedSeries) -> Placed:
        """Put a series into a tree, where its rules say. Raises StoreError."""
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
            await self._note_collision(tree_id, tsuid, row, column)
        return placed

    async def _note_collision(self, tree_id: int, tsuid: bytes, row: bytes, column: bytes) -> None:
        """Note that a series found its leaf taken by another."""
        cell = await read(self._store, self._table, row, column)
        try:
            first = decode_leaf(cell.value).tsuid if cell else ""
        except CorruptRow:
            return
        if first and first != tsuid.hex().upper():
            taken = Put(collision_row(tree_id), COLLISION_PREFIX + tsuid, first.encode())
            await self._store.put(self._table, [taken])


def _there(before: bytes | None, why: str) -> bytes:
    if before is None:
        raise NoSuchTree(why)
    return before

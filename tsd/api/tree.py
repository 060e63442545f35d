"""`/api/tree…`: series arranged by rules into branches and leaves (wire.md §12.8)."""

from collections.abc import Mapping, Sequence
from typing import Any

from tsd.api.lookup import SeriesNames
from tsd.api.messages import DONE, UNCHANGED, answer, is_true, meant_method, objects_of, words_of_all
from tsd.api.tree_messages import (
    ROOT_BRANCH,
    changed_rule,
    members_of,
    rule_place,
    show_branch,
    show_leaf,
    show_opened,
    show_rule,
    show_tree,
    tree_changes,
    tree_id_in,
)
from tsd.codec.tree import Leaf, Rule, Tree, branch_row, tree_row
from tsd.codec.tsuid import parse_uid, split_tsuid
from tsd.codec.uid import Widths
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, NoSuchName, Refused
from tsd.metadata.described import UidMetas
from tsd.metadata.naming import named_series
from tsd.metadata.tree_rules import place
from tsd.metadata.trees import NoSuchTree, Trees
from tsd.uids import Uids

MOST_RULES = 1000  # of one request
MOST_TSUIDS = 1000


def routes(trees: Trees, uids: Uids, metas: UidMetas, widths: Widths) -> dict[str, Endpoint]:
    """The endpoint."""
    pages = TreePages(trees, uids, metas, widths)
    by_word = {
        "": pages.tree,
        "rule": pages.rule,
        "rules": pages.rules,
        "branch": pages.branch,
        "test": pages.test,
        "collisions": pages.failures,
        "notmatched": pages.failures,
    }

    async def tree(request: Request) -> Response:
        page = by_word.get((*request.segments, "")[1].lower())
        if page is None:
            raise Refused(404, "This endpoint is not supported")
        method = meant_method(request)
        if method not in ("GET", "POST", "PUT", "DELETE"):
            raise _unsupported()
        try:
            return await page(request, method)
        except NoSuchTree as error:
            raise Refused(404, str(error)) from error

    return {"api/tree": tree}


def _unsupported() -> Refused:
    return Refused(400, "Unsupported HTTP request method")


class TreePages:
    """What the endpoints do. Each may raise Refused, NoSuchTree and StoreError."""

    def __init__(self, trees: Trees, uids: Uids, metas: UidMetas, widths: Widths) -> None:
        self._trees = trees
        self._uids = uids
        self._metas = metas
        self._widths = widths

    async def tree(self, request: Request, method: str) -> Response:
        """`/api/tree`."""
        members = members_of(request)
        tree_id = tree_id_in(members, wanted=method == "DELETE")
        if method == "GET":
            if tree_id:
                return answer(show_tree(await self._trees.get(tree_id)))
            return answer([show_tree(await self._trees.get(each)) for each in await self._trees.ids()])
        if method == "DELETE":
            await self._trees.get(_there(tree_id))
            await self._trees.delete(tree_id, definition=is_true(members.get("definition")))
            return DONE
        return await self._put_tree(members, tree_id, replace=method == "PUT")

    async def _put_tree(self, members: Mapping[str, Any], tree_id: int, *, replace: bool) -> Response:
        changes = tree_changes(members)
        if not tree_id:
            if not changes.get("name"):
                raise Refused(400, "Tree was missing the name", "Tree was missing the name")
            tree_id = await self._trees.create(Tree(**changes))
            return answer(show_tree(await self._trees.get(tree_id)))

        def changed(tree: Tree) -> Tree:
            return (Tree("", created_s=tree.created_s) if replace else tree)._replace(**changes)

        if not await self._trees.change(tree_id, changed):
            return UNCHANGED
        return answer(show_tree(await self._trees.get(tree_id)))

    async def rule(self, request: Request, method: str) -> Response:
        """`/api/tree/rule`."""
        members = members_of(request)
        spot = tree_id, level, order = rule_place(members)
        rules = {(rule.level, rule.order): rule for rule in (await self._trees.get(_there(tree_id))).rules}
        if method in ("GET", "DELETE"):
            rule = rules.get((level, order))
            if rule is None:
                raise Refused(404, f"Unable to locate rule: [{tree_id}:{level}:{order}:null]")
            if method == "GET":
                return answer(show_rule(rule))
            await self._trees.delete_rules(tree_id, [(level, order)])
            return DONE
        if not await self._put_rule(members, spot, replace=method == "PUT"):
            return UNCHANGED
        rules = {(rule.level, rule.order): rule for rule in (await self._trees.get(tree_id)).rules}
        return answer(show_rule(rules[level, order]))

    async def _put_rule(self, members: Mapping[str, Any], spot: tuple[int, int, int], *, replace: bool) -> bool:
        def changed(stored: Rule | None) -> Rule:
            kept = Rule(stored.kind, stored.tree_id) if stored and replace else stored
            return changed_rule(members, kept, spot)

        return await self._trees.put_rule(*spot, changed)

    async def rules(self, request: Request, method: str) -> Response:
        """`/api/tree/rules`."""
        if method == "GET":
            raise _unsupported()
        if method == "DELETE":
            tree_id = tree_id_in(members_of(request), wanted=True)
            await self._trees.get(_there(tree_id))
            await self._trees.delete_rules(tree_id)
            return DONE
        if not request.body:
            tree_id = tree_id_in(members_of(request), wanted=False)
            if not tree_id:
                raise Refused(400, "Invalid Tree ID", "Invalid Tree ID")
            await self._trees.get(tree_id)
        listed = objects_of(request) if request.body else []
        if not listed:
            raise Refused(400, "Missing tree rules")
        if len(listed) > MOST_RULES:
            raise Refused(413, f"More than {MOST_RULES} rules")
        spots = [rule_place(members) for members in listed]
        tree_id = spots[0][0]
        if any(spot[0] != tree_id for spot in spots):
            raise Refused(400, "All rules must belong to the same tree")
        stored = {} if method == "PUT" else {(one.level, one.order): one for one in await self._rules(tree_id)}
        await self._trees.get(_there(tree_id))
        for members, spot in zip(listed, spots, strict=True):  # before anything is written
            changed_rule(members, stored.get(spot[1:]), spot)
        if method == "PUT":
            await self._trees.delete_rules(tree_id)
        for members, spot in zip(listed, spots, strict=True):
            await self._put_rule(members, spot, replace=method == "PUT")
        return DONE

    async def _rules(self, tree_id: int) -> Sequence[Rule]:
        return (await self._trees.get(_there(tree_id))).rules

    async def branch(self, request: Request, method: str) -> Response:
        """`/api/tree/branch`."""
        if method != "GET":
            raise _unsupported()
        tree_id = tree_id_in(members_of(request), wanted=False)
        text = request.param("branch")
        if not text and not tree_id:
            raise Refused(400, "Missing or invalid branch and tree IDs")
        row = self._branch_row(text) if text else tree_row(tree_id)
        opened = await self._trees.open(row)
        return answer(show_opened(opened, await self._leaves(opened.leaves)))

    def _branch_row(self, text: str) -> bytes:
        try:
            row = parse_uid(text)
        except BadLine as error:
            raise Refused(400, "Missing or invalid branch and tree IDs", str(error)) from error
        if len(row) < len(tree_row(1)):
            raise Refused(400, "Branch ID was too short")
        return row

    async def _leaves(self, leaves: Sequence[Leaf]) -> list[dict[str, Any]]:
        """Leaves with their series' names; those whose names are gone are left out."""
        width = self._widths.metric
        ids = [bytes.fromhex(leaf.tsuid) for leaf in leaves]
        named = await SeriesNames(self._uids, self._widths).show([(one[:width], one[width:]) for one in ids])
        names = {one["tsuid"]: one for one in named}
        return [
            show_leaf(leaf, names[leaf.tsuid]["metric"], names[leaf.tsuid]["tags"])
            for leaf in leaves
            if leaf.tsuid in names
        ]

    async def test(self, request: Request, method: str) -> Response:
        """`/api/tree/test`: where series would go."""
        if method == "DELETE":
            raise _unsupported()
        members = members_of(request)
        definition = await self._trees.get(_there(tree_id_in(members, wanted=True)))
        tsuids = self._tsuids(request, members)
        if not tsuids:
            raise Refused(400, "Missing or empty TSUID list")
        told: dict[str, Any] = {}
        for tsuid in tsuids:
            name = tsuid.hex().upper()
            try:
                series = await named_series(self._uids, self._metas, self._widths, tsuid)
            except NoSuchName:
                told[name] = {"branch": None, "meta": None, "messages": ["TSUID was missing a UID name"]}
                continue
            placed = place(series, definition.rules)
            row = branch_row(definition.tree_id, placed.path[1:-1])
            leaf = [show_leaf(Leaf(placed.path[-1], name), series.metric, dict(series.tags))] * placed.is_placed
            branch = ROOT_BRANCH._replace(path=placed.path[:-1] or placed.path)
            told[name] = {
                "branch": show_branch(row, branch, leaf or None, None),
                "meta": {"tsuid": name, "metric": series.metric, "tags": dict(series.tags)},
                "messages": list(placed.messages),
            }
        return answer(told)

    async def failures(self, request: Request, method: str) -> Response:
        """`/api/tree/collisions` and `/api/tree/notmatched`: which series are not in a tree, and why."""
        if method == "DELETE":
            raise _unsupported()
        members = members_of(request)
        tree_id = tree_id_in(members, wanted=True)
        await self._trees.get(_there(tree_id))
        collisions = request.segments[1].lower() == "collisions"
        found = await self._trees.failures(tree_id, self._tsuids(request, members), collisions=collisions)
        return answer({tsuid.hex().upper(): text for tsuid, text in found.items()})

    def _tsuids(self, request: Request, members: Mapping[str, Any]) -> list[bytes]:
        """The series that are asked about; raises Refused."""
        listed = members.get("tsuids")
        texts = listed if isinstance(listed, list) else words_of_all(request.params.get("tsuids", ()))
        if len(texts) > MOST_TSUIDS:
            raise Refused(413, f"More than {MOST_TSUIDS} TSUIDs")
        found = []
        for text in texts:
            try:
                tsuid = parse_uid(str(text))
                split_tsuid(self._widths, tsuid)
            except BadLine as error:
                raise Refused(400, str(error)) from error
            found.append(tsuid)
        return found


def _there(tree_id: int) -> int:
    """A tree's id, which is above 0; raises NoSuchTree."""
    if tree_id < 1:
        raise NoSuchTree(f"Unable to locate tree: {tree_id}")
    return tree_id

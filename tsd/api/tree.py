"""`/api/tree…`: series arranged by rules into branches and leaves (docs/compat/wire.md §12.8)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    is_true,
    meant_method,
    missing_part,
    number_in,
    object_of,
    objects_of,
    text_in,
    words_of_all,
)
from tsd.codec.metadata import LAST_TREE, ROOT, Branch, Leaf, Rule, RuleKind, Tree
from tsd.codec.names import parse_uid, show_uid
from tsd.errors import BadLine, NoSuchName, Refused
from tsd.lazy import LazyModule
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import BranchContents, NoSuchTree, SeriesCatalog, TreeDefinition, Trees
from tsd.tables.tree_rules import BadRule, check_rule, place

if TYPE_CHECKING:
    from tsd.codec import regex
else:  # few daemons have trees
    regex = LazyModule("tsd.codec.regex")

# Fields of Tree and Rule by their JSON members. Parameters of a URL may spell them with underscores.
TREE_TEXTS = {"name": "name", "description": "description", "notes": "notes"}
TREE_FLAGS = {"strictMatch": "strict_match", "enabled": "enabled", "storeFailures": "store_failures"}
RULE_TEXTS = {
    "field": "field",
    "regex": "regex",
    "separator": "separator",
    "description": "description",
    "notes": "notes",
    "customField": "custom_field",
    "displayFormat": "display_format",
}
IN_URL = {
    "treeid": "treeId",
    "strict_match": "strictMatch",
    "store_failures": "storeFailures",
    "custom_field": "customField",
    "regex_group_idx": "regexGroupIdx",
    "display_format": "displayFormat",
}


def members_of(request: Request) -> Mapping[str, Any]:
    """Return the members of a request's body, or its parameters, named as in JSON. Raise Refused."""
    if request.body:
        return object_of(request)
    return {IN_URL.get(name, name): request.param(name) for name in request.params}


def tree_id_in(members: Mapping[str, Any], *, required: bool) -> int:
    """Return the id of a tree; 0 if absent, unless it is required. Raise Refused."""
    text = text_in(members, "treeId")
    if not text:
        if required:
            raise Refused(400, "Missing parameter <code>treeid</code>")
        return 0
    number = whole_number(text, "tree")
    if not 0 <= number <= LAST_TREE:
        raise Refused(400, "Tree ID is out of bounds", f"got {number}, wanted 1 to {LAST_TREE}")
    return number


def whole_number(text: str, name: str) -> int:
    """Return an integer in a text. Raise Refused."""
    try:
        return int(text)
    except ValueError as exc:
        raise Refused(400, f"Unable to parse '{name}' value", f'For input string: "{text}"') from exc


def tree_changes(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed fields of a tree. Raise Refused."""
    texts = {field: text_in(members, name) for name, field in TREE_TEXTS.items() if members.get(name) is not None}
    flags = {field: is_true(members[name]) for name, field in TREE_FLAGS.items() if members.get(name) is not None}
    return texts | flags


def rule_position(members: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return tree, level and order of a rule, all required. Raise Refused."""
    tree_id = tree_id_in(members, required=True)
    found = []
    for name in ("level", "order"):
        text = text_in(members, name)
        if not text:
            raise Refused(400, f"Missing parameter <code>{name}</code>")
        found.append(whole_number(text, name))
    if min(found) < 0 or max(found) > 1 << 30:
        raise Refused(400, "Invalid level or order", f"got {found}")
    return tree_id, found[0], found[1]


def changed_rule(members: Mapping[str, Any], stored: Rule | None, position: tuple[int, int, int]) -> Rule:
    """Return a rule with the changes of a request. Raise Refused."""
    kind = stored.kind if stored else None
    if word := text_in(members, "type"):
        if word.upper() not in RuleKind.__members__:
            raise Refused(400, "Unable to parse the 'type' parameter", f"Unrecognized rule type: {word}")
        kind = RuleKind[word.upper()]
    if kind is None:
        raise Refused(400, "Missing rule type", "Missing rule type")
    tree_id, level, order = position
    changes: dict[str, Any] = {
        field: text_in(members, name) for name, field in RULE_TEXTS.items() if members.get(name) is not None
    }
    if members.get("regexGroupIdx") is not None:
        changes["regex_group"] = number_in(members, "regexGroupIdx")
    rule = (stored or Rule(kind, tree_id))._replace(kind=kind, tree_id=tree_id, level=level, order=order, **changes)
    try:
        check_rule(rule)
        for pattern in (rule.regex, rule.separator):
            if regex.is_costly(pattern):  # a match cannot be cancelled
                raise BadRule(f"{pattern}: matching could take exponential time")
    except BadRule as error:
        raise Refused(400, str(error), str(error)) from error
    return rule


def show_tree(definition: TreeDefinition) -> dict[str, object]:
    """Return the JSON of a tree."""
    tree: Tree = definition.tree
    rules: dict[str, dict[str, Any]] = {}
    for rule in definition.rules:
        rules.setdefault(str(rule.level), {})[str(rule.order)] = show_rule(rule)
    return {
        "name": tree.name,
        "description": tree.description,
        "notes": tree.notes,
        "enabled": tree.enabled,
        "rules": rules or None,
        "created": tree.created_s,
        "treeId": definition.tree_id,
        "strictMatch": tree.strict_match,
        "storeFailures": tree.store_failures,
    }


def show_rule(rule: Rule) -> dict[str, object]:
    """Return the JSON of a rule."""
    return {
        "type": rule.kind.name,
        "field": rule.field,
        "regex": rule.regex,
        "separator": rule.separator,
        "description": rule.description,
        "notes": rule.notes,
        "level": rule.level,
        "order": rule.order,
        "treeId": rule.tree_id,
        "customField": rule.custom_field,
        "regexGroupIdx": rule.regex_group,
        "displayFormat": rule.display_format,
    }


def show_contents(contents: BranchContents, leaves: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON of a branch with its contents."""
    below = [show_branch(branch_id, branch, None, None) for branch_id, branch in contents.branches]
    return show_branch(contents.branch_id, contents.branch, leaves or None, below or None)


def show_branch(
    branch_id: bytes, branch: Branch, leaves: list[dict[str, Any]] | None, branches: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """Return the JSON of a branch."""
    return {
        "leaves": leaves,
        "branches": branches,
        "path": {str(depth): name for depth, name in enumerate(branch.path)},
        "displayName": branch.path[-1],
        "treeId": int.from_bytes(branch_id[:2], "big"),
        "branchId": show_uid(branch_id),
        "depth": len(branch.path) - 1,
    }


def show_leaf(leaf: Leaf, metric: str, tags: Mapping[str, str]) -> dict[str, object]:
    """Return the JSON of a leaf."""
    return {"metric": metric, "tags": tags, "tsuid": leaf.tsuid, "displayName": leaf.display_name}


ROOT_BRANCH = Branch((ROOT,))


MAX_RULES = 1000  # of one request
MAX_SERIES = 1000


def routes(trees: Trees | None, catalog: SeriesCatalog) -> dict[str, Endpoint]:
    """`/api/tree`."""
    if trees is None:
        return {"api/tree": missing_part("trees")}
    pages = TreePages(trees, catalog)
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
    """Handlers of the endpoints. Each may raise Refused, NoSuchTree and StoreError."""

    def __init__(self, trees: Trees, catalog: SeriesCatalog) -> None:
        self._trees = trees
        self._catalog = catalog

    async def tree(self, request: Request, method: str) -> Response:
        """`/api/tree`."""
        members = members_of(request)
        tree_id = tree_id_in(members, required=method == "DELETE")
        if method == "GET":
            if tree_id:
                return answer(show_tree(await self._trees.get(tree_id)))
            return answer([show_tree(await self._trees.get(each)) for each in await self._trees.ids()])
        if method == "DELETE":
            await self._trees.get(_checked(tree_id))
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

        if not await self._trees.edit(tree_id, changed):
            return UNCHANGED
        return answer(show_tree(await self._trees.get(tree_id)))

    async def rule(self, request: Request, method: str) -> Response:
        """`/api/tree/rule`."""
        members = members_of(request)
        position = tree_id, level, order = rule_position(members)
        rules = {(rule.level, rule.order): rule for rule in (await self._trees.get(_checked(tree_id))).rules}
        if method in ("GET", "DELETE"):
            rule = rules.get((level, order))
            if rule is None:
                raise Refused(404, f"Unable to locate rule: [{tree_id}:{level}:{order}:null]")
            if method == "GET":
                return answer(show_rule(rule))
            await self._trees.delete_rules(tree_id, [(level, order)])
            return DONE
        if not await self._put_rule(members, position, replace=method == "PUT"):
            return UNCHANGED
        rules = {(rule.level, rule.order): rule for rule in (await self._trees.get(tree_id)).rules}
        return answer(show_rule(rules[level, order]))

    async def _put_rule(self, members: Mapping[str, Any], position: tuple[int, int, int], *, replace: bool) -> bool:
        def changed(stored: Rule | None) -> Rule:
            kept = Rule(stored.kind, stored.tree_id) if stored and replace else stored
            return changed_rule(members, kept, position)

        return await self._trees.edit_rule(*position, changed)

    async def rules(self, request: Request, method: str) -> Response:
        """`/api/tree/rules`."""
        if method == "GET":
            raise _unsupported()
        if method == "DELETE":
            tree_id = tree_id_in(members_of(request), required=True)
            await self._trees.get(_checked(tree_id))
            await self._trees.delete_rules(tree_id)
            return DONE
        if not request.body:
            tree_id = tree_id_in(members_of(request), required=False)
            if not tree_id:
                raise Refused(400, "Invalid Tree ID", "Invalid Tree ID")
            await self._trees.get(tree_id)
        listed = objects_of(request) if request.body else []
        if not listed:
            raise Refused(400, "Missing tree rules")
        if len(listed) > MAX_RULES:
            raise Refused(413, f"More than {MAX_RULES} rules")
        positions = [rule_position(members) for members in listed]
        tree_id = positions[0][0]
        if any(position[0] != tree_id for position in positions):
            raise Refused(400, "All rules must belong to the same tree")
        stored = {} if method == "PUT" else {(one.level, one.order): one for one in await self._rules(tree_id)}
        await self._trees.get(_checked(tree_id))
        for members, position in zip(listed, positions, strict=True):  # check all before the first write
            changed_rule(members, stored.get(position[1:]), position)
        if method == "PUT":
            await self._trees.delete_rules(tree_id)
        for members, position in zip(listed, positions, strict=True):
            await self._put_rule(members, position, replace=method == "PUT")
        return DONE

    async def _rules(self, tree_id: int) -> Sequence[Rule]:
        return (await self._trees.get(_checked(tree_id))).rules

    async def branch(self, request: Request, method: str) -> Response:
        """`/api/tree/branch`."""
        if method != "GET":
            raise _unsupported()
        tree_id = tree_id_in(members_of(request), required=False)
        text = request.param("branch")
        if not text and not tree_id:
            raise Refused(400, "Missing or invalid branch and tree IDs")
        branch_id = self._branch_id(text) if text else self._trees.branch_id(tree_id)
        contents = await self._trees.open(branch_id)
        return answer(show_contents(contents, await self._leaves(contents.leaves)))

    def _branch_id(self, text: str) -> bytes:
        try:
            branch_id = parse_uid(text)
        except BadLine as error:
            raise Refused(400, "Missing or invalid branch and tree IDs", str(error)) from error
        if len(branch_id) < len(self._trees.branch_id(1)):
            raise Refused(400, "Branch ID was too short")
        return branch_id

    async def _leaves(self, leaves: Sequence[Leaf]) -> list[dict[str, Any]]:
        """Return leaves with the names of their series. Series with a nameless UID are omitted."""
        described = await self._catalog.describe([bytes.fromhex(leaf.tsuid) for leaf in leaves])
        names = {show_uid(one.series): one for one in described}
        return [
            show_leaf(leaf, names[leaf.tsuid].metric, names[leaf.tsuid].tags) for leaf in leaves if leaf.tsuid in names
        ]

    async def test(self, request: Request, method: str) -> Response:
        """`/api/tree/test`: at which branches a tree's rules place series."""
        if method == "DELETE":
            raise _unsupported()
        members = members_of(request)
        definition = await self._trees.get(_checked(tree_id_in(members, required=True)))
        listed = self._series(request, members)
        if not listed:
            raise Refused(400, "Missing or empty TSUID list")
        found: dict[str, Any] = {}
        for one in listed:
            name = show_uid(one)
            try:
                series = await self._trees.describe(one)
            except NoSuchName:
                found[name] = {"branch": None, "meta": None, "messages": ["TSUID was missing a UID name"]}
                continue
            placed = place(series, definition.rules)
            branch_id = self._trees.branch_id(definition.tree_id, placed.path[1:-1])
            leaf = [show_leaf(Leaf(placed.path[-1], name), series.metric, dict(series.tags))] * placed.is_placed
            branch = ROOT_BRANCH._replace(path=placed.path[:-1] or placed.path)
            found[name] = {
                "branch": show_branch(branch_id, branch, leaf or None, None),
                "meta": {"tsuid": name, "metric": series.metric, "tags": dict(series.tags)},
                "messages": list(placed.messages),
            }
        return answer(found)

    async def failures(self, request: Request, method: str) -> Response:
        """`/api/tree/collisions` and `/api/tree/notmatched`: the series that are not in a tree, and why."""
        if method == "DELETE":
            raise _unsupported()
        members = members_of(request)
        tree_id = tree_id_in(members, required=True)
        await self._trees.get(_checked(tree_id))
        collisions = request.segments[1].lower() == "collisions"
        found = await self._trees.failures(tree_id, self._series(request, members), collisions=collisions)
        return answer({show_uid(one): text for one, text in found.items()})

    def _series(self, request: Request, members: Mapping[str, Any]) -> list[bytes]:
        """Return the series that a request names. Raise Refused."""
        listed = members.get("tsuids")
        texts = listed if isinstance(listed, list) else words_of_all(request.params.get("tsuids", ()))
        if len(texts) > MAX_SERIES:
            raise Refused(413, f"More than {MAX_SERIES} TSUIDs")
        found = []
        for text in texts:
            try:
                found.append(self._catalog.parse_series(str(text)))
            except BadLine as error:
                raise Refused(400, str(error)) from error
        return found


def _checked(tree_id: int) -> int:
    """Return a tree's id. Raise NoSuchTree unless it is above 0."""
    if tree_id < 1:
        raise NoSuchTree(f"Unable to locate tree: {tree_id}")
    return tree_id

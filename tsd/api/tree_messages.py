"""Trees, rules and branches as JSON, and requests about them (wire.md §12.8)."""

from collections.abc import Mapping
from typing import Any

from tsd.api.messages import is_true, number_in, object_of, text_in
from tsd.codec.tree import LAST_TREE, ROOT, Branch, Leaf, Rule, RuleKind, Tree
from tsd.doors.exchange import Request
from tsd.errors import Refused
from tsd.metadata.tree_rules import BadRule, check_rule
from tsd.metadata.trees import Definition, Opened
from tsd.pattern_cost import is_costly

# Fields of a tree and of a rule by their members; a parameter of a URL may spell them with underscores.
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
    """What a request says, in its body or else its parameters, named as in JSON; raises Refused."""
    if request.body:
        return object_of(request)
    return {IN_URL.get(name, name): request.param(name) for name in request.params}


def tree_id_in(members: Mapping[str, Any], *, wanted: bool) -> int:
    """The tree that is meant; 0 where none is, unless one is wanted. Raises Refused."""
    text = text_in(members, "treeId")
    if not text:
        if wanted:
            raise Refused(400, "Missing parameter <code>treeid</code>")
        return 0
    number = whole_number(text, "tree")
    if not 0 <= number <= LAST_TREE:
        raise Refused(400, "Tree ID is out of bounds", f"got {number}, wanted 1 to {LAST_TREE}")
    return number


def whole_number(text: str, name: str) -> int:
    """A number in a text; raises Refused."""
    try:
        return int(text)
    except ValueError as exc:
        raise Refused(400, f"Unable to parse '{name}' value", f'For input string: "{text}"') from exc


def tree_changes(members: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a tree that are named; raises Refused."""
    texts = {field: text_in(members, name) for name, field in TREE_TEXTS.items() if members.get(name) is not None}
    flags = {field: is_true(members[name]) for name, field in TREE_FLAGS.items() if members.get(name) is not None}
    return texts | flags


def rule_place(members: Mapping[str, Any]) -> tuple[int, int, int]:
    """Tree, level and order of a rule, all of which are wanted; raises Refused."""
    tree_id = tree_id_in(members, wanted=True)
    found = []
    for name in ("level", "order"):
        text = text_in(members, name)
        if not text:
            raise Refused(400, f"Missing parameter <code>{name}</code>")
        found.append(whole_number(text, name))
    if min(found) < 0 or max(found) > 1 << 30:
        raise Refused(400, "Invalid level or order", f"got {found}")
    return tree_id, found[0], found[1]


def changed_rule(members: Mapping[str, Any], stored: Rule | None, place: tuple[int, int, int]) -> Rule:
    """A rule with what a request says of it; raises Refused."""
    kind = stored.kind if stored else None
    if word := text_in(members, "type"):
        if word.upper() not in RuleKind.__members__:
            raise Refused(400, "Unable to parse the 'type' parameter", f"Unrecognized rule type: {word}")
        kind = RuleKind[word.upper()]
    if kind is None:
        raise Refused(400, "Missing rule type", "Missing rule type")
    tree_id, level, order = place
    changes: dict[str, Any] = {
        field: text_in(members, name) for name, field in RULE_TEXTS.items() if members.get(name) is not None
    }
    if members.get("regexGroupIdx") is not None:
        changes["regex_group"] = number_in(members, "regexGroupIdx")
    rule = (stored or Rule(kind, tree_id))._replace(kind=kind, tree_id=tree_id, level=level, order=order, **changes)
    try:
        check_rule(rule)
        for pattern in (rule.regex, rule.separator):
            if is_costly(pattern):  # a matcher cannot be stopped, and one that never ends would stop all
                raise BadRule(f"{pattern}: it could take time beyond all bounds")
    except BadRule as error:
        raise Refused(400, str(error), str(error)) from error
    return rule


def show_tree(definition: Definition) -> dict[str, Any]:
    """A tree as clients get it."""
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


def show_rule(rule: Rule) -> dict[str, Any]:
    """A rule as clients get it."""
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


def show_opened(opened: Opened, leaves: list[dict[str, Any]]) -> dict[str, Any]:
    """A branch with what is in it, as clients get it."""
    below = [show_branch(row, branch, None, None) for row, branch in opened.branches]
    return show_branch(opened.row, opened.branch, leaves or None, below or None)


def show_branch(
    row: bytes, branch: Branch, leaves: list[dict[str, Any]] | None, branches: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """A branch as clients get it."""
    return {
        "leaves": leaves,
        "branches": branches,
        "path": {str(depth): name for depth, name in enumerate(branch.path)},
        "displayName": branch.path[-1],
        "treeId": int.from_bytes(row[:2], "big"),
        "branchId": row.hex().upper(),
        "depth": len(branch.path) - 1,
    }


def show_leaf(leaf: Leaf, metric: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """A leaf as clients get it."""
    return {"metric": metric, "tags": tags, "tsuid": leaf.tsuid, "displayName": leaf.display_name}


ROOT_BRANCH = Branch((ROOT,))

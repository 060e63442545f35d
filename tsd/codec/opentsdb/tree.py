"""Trees: series arranged by names into branches and leaves (FORMATS.md §10).

A row of the tree table is a tree or a branch. A branch's id is its tree's id and the hashes of the names on its path.
"""

from collections.abc import Iterable

from tsd.codec.metadata import LAST_TREE, Branch, Leaf, Rule, RuleKind, Tree
from tsd.codec.text import decode_object, encode_object, flag_of, java_hash, long_of, text_of
from tsd.errors import CorruptRow

TREE = b"t:tree"
BRANCH = b"t:branch"
RULE_PREFIX = b"t:tree_rule:"
LEAF_PREFIX = b"t:leaf:"
COLLISION_PREFIX = b"t:tree_collision:"  # then a TSUID; the value is the TSUID in hex that has the leaf
NOT_MATCHED_PREFIX = b"t:tree_not_matched:"  # then a TSUID; the value is a message


def tree_row(tree_id: int) -> bytes:
    """Return the row of a tree, and of its root branch.

    >>> tree_row(1).hex()
    '0001'
    """
    assert 0 < tree_id <= LAST_TREE, tree_id
    return tree_id.to_bytes(2, "big")


def collision_row(tree_id: int) -> bytes:
    """Return the row of series whose leaf is taken by another series."""
    return tree_row(tree_id) + b"\x01"


def not_matched_row(tree_id: int) -> bytes:
    """Return the row of series that no rule places."""
    return tree_row(tree_id) + b"\x02"


def name_hash(name: str) -> bytes:
    """Return the 4 bytes of a branch's or leaf's name: its Java hash.

    >>> name_hash("sys").hex()
    '0001becd'
    """
    return java_hash(name).to_bytes(4, "big", signed=True)


def branch_row(tree_id: int, names: Iterable[str]) -> bytes:
    """Return the row of a branch, by the names below the root.

    >>> branch_row(1, ["sys", "cpu", "user"]).hex()
    '00010001becd000181a80036ebcb'
    """
    return tree_row(tree_id) + b"".join(map(name_hash, names))


def leaf_column(display_name: str) -> bytes:
    """Return the column of a leaf in its branch's row.

    >>> leaf_column("web01")[-4:].hex()
    '06bc4c55'
    """
    return LEAF_PREFIX + name_hash(display_name)


def rule_column(level: int, order: int) -> bytes:
    """Return the column of a rule in its tree's row.

    >>> rule_column(0, 1)
    b't:tree_rule:0:1'
    """
    return RULE_PREFIX + b"%d:%d" % (level, order)


def encode_tree(tree: Tree) -> bytes:
    """Return the value of TREE.

    >>> encode_tree(Tree("T1"))[:33]
    b'{"name":"T1","description":"","no'
    """
    return encode_object(
        {
            "name": tree.name,
            "description": tree.description,
            "notes": tree.notes,
            "strictMatch": tree.strict_match,
            "created": tree.created_s,
            "enabled": tree.enabled,
            "storeFailures": tree.store_failures,
        }
    )


def decode_tree(value: bytes) -> Tree:
    """Return the tree in TREE. Raise CorruptRow."""
    members = decode_object(value)
    return Tree(
        name=text_of(members, "name"),
        description=text_of(members, "description"),
        notes=text_of(members, "notes"),
        strict_match=flag_of(members, "strictMatch"),
        created_s=long_of(members, "created"),
        enabled=flag_of(members, "enabled"),
        store_failures=flag_of(members, "storeFailures"),
    )


def encode_rule(rule: Rule) -> bytes:
    """Return the value of a rule's column.

    >>> encode_rule(Rule(RuleKind.TAGK, 1, field="host"))[:42]
    b'{"type":"TAGK","field":"host","regex":"","'
    """
    return encode_object(
        {
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
    )


def decode_rule(value: bytes) -> Rule:
    """Return the rule in a column. Raise CorruptRow."""
    members = decode_object(value)
    name = text_of(members, "type")
    if name not in RuleKind.__members__:
        raise CorruptRow(f"type: got {name!r}, wanted one of {', '.join(RuleKind.__members__)}")
    return Rule(
        kind=RuleKind[name],
        tree_id=long_of(members, "treeId"),
        level=long_of(members, "level"),
        order=long_of(members, "order"),
        field=text_of(members, "field"),
        regex=text_of(members, "regex"),
        separator=text_of(members, "separator"),
        description=text_of(members, "description"),
        notes=text_of(members, "notes"),
        custom_field=text_of(members, "customField"),
        regex_group=long_of(members, "regexGroupIdx"),
        display_format=text_of(members, "displayFormat"),
    )


def encode_branch(branch: Branch) -> bytes:
    """Return the value of BRANCH.

    >>> encode_branch(Branch(("ROOT", "sys")))
    b'{"path":{"0":"ROOT","1":"sys"},"displayName":"sys"}'
    """
    path = {str(depth): name for depth, name in enumerate(branch.path)}
    return encode_object({"path": path, "displayName": branch.path[-1]})


def decode_branch(value: bytes) -> Branch:
    """Return the branch in BRANCH. Raise CorruptRow.

    >>> decode_branch(b'{"path":{"0":"ROOT","1":"sys"},"displayName":"sys"}')
    Branch(path=('ROOT', 'sys'))
    """
    members = decode_object(value)
    path = members.get("path")
    if not isinstance(path, dict) or set(path) != {str(depth) for depth in range(len(path))} or not path:
        raise CorruptRow(f"path: got {path!r}, wanted names by depth from 0")
    branch = Branch(tuple(text_of(path, str(depth)) for depth in range(len(path))))
    if text_of(members, "displayName") != branch.path[-1]:
        raise CorruptRow(f"displayName: got {text_of(members, 'displayName')!r}, wanted {branch.path[-1]!r}")
    return branch


def encode_leaf(leaf: Leaf) -> bytes:
    """Return the value of a leaf's column.

    >>> encode_leaf(Leaf("web01", "000001000001000001"))
    b'{"displayName":"web01","tsuid":"000001000001000001"}'
    """
    return encode_object({"displayName": leaf.display_name, "tsuid": leaf.tsuid})


def decode_leaf(value: bytes) -> Leaf:
    """Return the leaf in a column. Raise CorruptRow."""
    members = decode_object(value)
    return Leaf(text_of(members, "displayName"), text_of(members, "tsuid"))

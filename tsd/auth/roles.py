"""What each endpoint and each command needs: one table for both doors.

A need is a set of roles of which one is enough; an empty one is everybody's. What has no line here needs admin.
"""

from collections.abc import Callable, Mapping

from tsd.access.roles import Role

EVERYBODY = Role.NONE
KNOWN = Role.READ | Role.WRITE | Role.ADMIN  # whoever may do anything at all
LOOK = Role.READ | Role.ADMIN

Need = Role | Callable[[str, str], Role]  # of the method, and of what follows in the path: in lower case


def _edit(method: str, _word: str) -> Role:
    """Of what is written one by one: deleting one is no worse than overwriting it."""
    return Role.READ if method not in ("POST", "PUT", "DELETE") else Role.WRITE


def _edit_or_delete(method: str, _word: str) -> Role:
    return Role.ADMIN if method == "DELETE" else _edit(method, _word)


def _annotation(method: str, word: str) -> Role:
    return _edit_or_delete(method, word) if word == "bulk" else _edit(method, word)


def _uid(method: str, word: str) -> Role:
    match word:
        case "assign":
            return Role.WRITE
        case "uidmeta" | "tsmeta":
            return _edit_or_delete(method, word)
        case "rename" | "delete":
            return Role.ADMIN
    return KNOWN  # there is nothing


def _tree(method: str, word: str) -> Role:
    if word in ("branch", "test", "collisions", "notmatched") and method != "DELETE":
        return Role.READ  # also where the question is in a body
    if word == "rules" and method == "PUT":
        return Role.ADMIN  # it deletes those that there are
    return _edit_or_delete(method, word)


def _query(method: str, _word: str) -> Role:
    return Role.ADMIN if method == "DELETE" else Role.READ


def _stats(method: str, word: str) -> Role:
    """What our code does is for those who run the daemon; so is to end somebody's query."""
    return Role.ADMIN if method == "DELETE" or word == "threads" else LOOK


ENDPOINTS: Mapping[str, Need] = {
    "": KNOWN,
    "aggregators": KNOWN,
    "api/aggregators": KNOWN,
    "api/annotation": _annotation,
    "api/annotations": _edit_or_delete,
    "api/config": LOOK,
    "api/dropcaches": Role.ADMIN,
    "api/histogram": Role.WRITE,
    "api/put": Role.WRITE,
    "api/query": Role.READ,
    "api/query/exp": Role.READ,
    "api/query/gexp": Role.READ,
    "api/query/last": Role.READ,
    "api/rollup": Role.WRITE,
    "api/search": Role.READ,
    "api/serializers": KNOWN,
    "api/stats": _stats,
    "api/stats/clients": _stats,
    "api/stats/query": _stats,
    "api/suggest": Role.READ,
    "api/tree": _tree,
    "api/uid": _uid,
    "api/version": KNOWN,
    "diediedie": Role.ADMIN,
    "favicon.ico": KNOWN,
    "logs": Role.ADMIN,
    "q": Role.READ,
    "s": KNOWN,
    "stats": LOOK,
    "suggest": Role.READ,
    "version": KNOWN,
}
COMMANDS: Mapping[str, Role] = {
    "put": Role.WRITE,
    "rollup": Role.WRITE,
    "histogram": Role.WRITE,
    "sync": Role.WRITE,
    "stats": LOOK,
    "version": EVERYBODY,
    "help": EVERYBODY,
    "exit": EVERYBODY,
    "dropcaches": Role.ADMIN,
    "diediedie": Role.ADMIN,
}
PROBES = {"everybody": EVERYBODY, "known": KNOWN, "read": LOOK, "admin": Role.ADMIN}  # of settings


def endpoints(health: str, metrics: str, *, may_delete: bool) -> Mapping[str, Need]:
    """The table, with those that a setting decides. Where queries may not delete, their endpoint says so to all."""
    deleting: Mapping[str, Need] = dict.fromkeys(("api/query", "q"), _query) if may_delete else {}
    return {**ENDPOINTS, **deleting, "health": PROBES[health], "metrics": PROBES[metrics]}


def needed(need: Need, method: str, word: str) -> Role:
    """The roles of which a request needs one. `method` is the one that is meant."""
    return need if isinstance(need, Role) else need(method, word)


def is_told(key: str, need: Role, method: str, word: str) -> bool:
    """Whether the log tells who asked for this, and got it: what deletes, what gives UIDs and names by hand, and what
    else takes an administrator, but for what only shows something."""
    if key == "logs" or (key == "api/stats" and method != "DELETE"):
        return False
    return need == Role.ADMIN or method == "DELETE" or (key == "api/uid" and word in ("assign", "rename"))


def suffices(roles: Role, need: Role) -> bool:
    """Whether somebody with these roles may."""
    return not need or bool(roles & need)


def written(need: Role) -> str:
    """For people.

    >>> written(Role.READ | Role.ADMIN)
    'read or admin'
    """
    return " or ".join(role.name.lower() for role in Role if role in need and role.name)

"""Roles, and the permissions of every HTTP endpoint and telnet command.

A permission is a set of roles, any one of which is enough; the empty set allows every sender. An endpoint that is not
listed here needs the role admin.
"""

from collections.abc import Callable, Mapping
from enum import Flag
from typing import NamedTuple

from tsd.config.settings import AUDIENCES


class Role(Flag):
    """What an account may do. Roles are independent: admin does not include write."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 4


class Principal(NamedTuple):
    """The name and roles of a sender."""

    name: str  # empty: not authenticated
    roles: Role

    def may(self, role: Role) -> bool:
        """Return whether all of `role` is granted."""
        return role in self.roles


ANONYMOUS = Principal("", Role.READ | Role.WRITE)
"""An unauthenticated sender while authentication is off."""
SUPERUSER = Principal("", Role.READ | Role.WRITE | Role.ADMIN)
"""The daemon's own commands."""


PUBLIC = Role.NONE
ANY_ROLE = Role.READ | Role.WRITE | Role.ADMIN
VIEW_STATUS = Role.READ | Role.ADMIN

Permission = Role | Callable[[str, str], Role]  # of the method and the path segment after the endpoint, in lower case


def _edit(method: str, _word: str) -> Role:
    """Return the permission for single objects: deleting one is no worse than overwriting it."""
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
    return ANY_ROLE  # no such endpoint


def _tree(method: str, word: str) -> Role:
    if word in ("branch", "test", "collisions", "notmatched") and method != "DELETE":
        return Role.READ  # also as POST
    if word == "rules" and method == "PUT":
        return Role.ADMIN  # replaces existing rules
    return _edit_or_delete(method, word)


def _query(method: str, _word: str) -> Role:
    return Role.ADMIN if method == "DELETE" else Role.READ


def _stats(method: str, word: str) -> Role:
    """Return the role for statistics: stack traces and cancelling queries need that of administrators."""
    return Role.ADMIN if method == "DELETE" or word == "threads" else VIEW_STATUS


ENDPOINT_PERMISSIONS: Mapping[str, Permission] = {
    "": PUBLIC,  # the page has no data
    "aggregators": ANY_ROLE,
    "api/aggregators": ANY_ROLE,
    "api/annotation": _annotation,
    "api/annotations": _edit_or_delete,
    "api/config": VIEW_STATUS,
    "api/datapoints": Role.WRITE,
    "api/datapoints/delete": Role.ADMIN,
    "api/datapoints/query": Role.READ,
    "api/dropcaches": Role.ADMIN,
    "api/entity": _edit,
    "api/features": ANY_ROLE,
    "api/health": ANY_ROLE,
    "api/histogram": Role.WRITE,
    "api/metadata": _edit,
    "api/metric": Role.ADMIN,
    "api/metricnames": Role.READ,
    "api/put": Role.WRITE,
    "api/query": Role.READ,
    "api/query/exp": Role.READ,
    "api/query/gexp": Role.READ,
    "api/query/last": Role.READ,
    "api/rollup": Role.WRITE,
    "api/search": Role.READ,
    "api/serializers": ANY_ROLE,
    "api/stats": _stats,
    "api/stats/clients": _stats,
    "api/stats/hot": _stats,
    "api/stats/query": _stats,
    "api/stats/rejected": _stats,
    "api/suggest": Role.READ,
    "api/tagnames": Role.READ,
    "api/tagvalues": Role.READ,
    "api/tree": _tree,
    "api/uid": _uid,
    "api/version": ANY_ROLE,
    "diediedie": Role.ADMIN,
    "favicon.ico": ANY_ROLE,
    "logs": Role.ADMIN,
    "q": Role.READ,
    "s": ANY_ROLE,
    "stats": VIEW_STATUS,
    "suggest": Role.READ,
    "ui": PUBLIC,
    "version": ANY_ROLE,
    "write": Role.WRITE,
}
COMMAND_PERMISSIONS: Mapping[str, Role] = {
    "put": Role.WRITE,
    "rollup": Role.WRITE,
    "histogram": Role.WRITE,
    "meta": Role.WRITE,
    "sync": Role.WRITE,
    "stats": VIEW_STATUS,
    "version": PUBLIC,
    "help": PUBLIC,
    "exit": PUBLIC,
    "dropcaches": Role.ADMIN,
    "diediedie": Role.ADMIN,
}
PROBE_PERMISSIONS = dict(zip(AUDIENCES, (PUBLIC, ANY_ROLE, VIEW_STATUS, Role.ADMIN), strict=True))


def endpoint_permissions(health: str, metrics: str, *, may_delete: bool) -> Mapping[str, Permission]:
    """Return the permissions of all endpoints, including those that depend on settings.

    If queries may not delete, DELETE needs no role: the endpoint then responds that deletion is disabled.
    """
    deleting: Mapping[str, Permission] = dict.fromkeys(("api/query", "q"), _query) if may_delete else {}
    probes = {"health": PROBE_PERMISSIONS[health], "metrics": PROBE_PERMISSIONS[metrics]}
    return {**ENDPOINT_PERMISSIONS, **deleting, **probes}


def required_roles(permission: Permission, method: str, word: str) -> Role:
    """Return the roles of which a request needs one. `method` is the one after `method_override`."""
    return permission if isinstance(permission, Role) else permission(method, word)


def is_audited(key: str, needed: Role, method: str, word: str) -> bool:
    """Return whether the log records an allowed request.

    It records deletions, the assignment and renaming of UIDs, and requests that need admin and do not only read.
    """
    if key == "logs" or (key == "api/stats" and method != "DELETE"):
        return False
    return needed == Role.ADMIN or method == "DELETE" or (key == "api/uid" and word in ("assign", "rename"))


def is_change(needed: Role) -> bool:
    """Return whether a request that needs one of some roles may change something: readers may not send it."""
    return bool(needed._value_) and not needed._value_ & Role.READ._value_


def is_permitted(roles: Role, needed: Role) -> bool:
    """Return whether one of the needed roles is granted."""
    return not needed._value_ or bool(roles._value_ & needed._value_)  # operators of flags are slow


def describe_roles(needed: Role) -> str:
    """Return the names of alternative roles.

    >>> describe_roles(Role.READ | Role.ADMIN)
    'read or admin'
    """
    return " or ".join(role.name.lower() for role in Role if role in needed and role.name)

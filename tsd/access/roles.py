"""Roles, and who has them."""

from enum import Flag
from typing import NamedTuple


class Role(Flag):
    """What somebody may do. Each stands alone: who may administer need not be able to write."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 4


class Principal(NamedTuple):
    """Somebody with a name and roles."""

    name: str  # empty: nobody in particular
    roles: Role

    def may(self, role: Role) -> bool:
        """Whether all of `role` is granted."""
        return role in self.roles


ANYBODY = Principal("", Role.READ | Role.WRITE)
"""Who has not shown who it is, where nobody has to."""
EVERYTHING = Principal("", Role.READ | Role.WRITE | Role.ADMIN)
"""Who has all roles: this machine's own commands."""

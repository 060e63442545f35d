"""Annotations, metadata and trees as plain records. Their stored forms are in codec/<layout>."""

import enum
import math
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.codec.text import (
    Custom,
)


class Annotation(NamedTuple):
    """One annotation. Times are timestamps as sent: Unix seconds, or milliseconds from 2^32 up. An end time of 0 means
    none."""

    start_time: int
    end_time: int = 0
    description: str = ""
    notes: str = ""
    tsuid: str = ""  # hex, as the client spelled it; empty for a global annotation
    custom: Custom = None


class UidMeta(NamedTuple):
    """Metadata of a name. The UID and the name are not part of it."""

    kind: Kind
    display_name: str = ""
    description: str = ""
    notes: str = ""
    created_s: int = 0  # Unix seconds
    custom: Custom = None


class TsMeta(NamedTuple):
    """Metadata of a time series."""

    tsuid: str  # in hex, upper case
    display_name: str = ""
    description: str = ""
    notes: str = ""
    created_s: int = 0  # Unix seconds
    custom: Custom = None
    units: str = ""
    data_type: str = ""
    retention: int = 0
    max: float = math.nan
    min: float = math.nan


LAST_TREE = 65535  # highest id of a tree
ROOT = "ROOT"  # name of each tree's root branch


class Tree(NamedTuple):
    """A tree's definition, without its id and rules."""

    name: str
    description: str = ""
    notes: str = ""
    strict_match: bool = False
    created_s: int = 0
    enabled: bool = False
    store_failures: bool = False


class RuleKind(enum.Enum):
    """Source of a branch's name in a rule."""

    METRIC = enum.auto()
    METRIC_CUSTOM = enum.auto()
    TAGK = enum.auto()
    TAGK_CUSTOM = enum.auto()
    TAGV_CUSTOM = enum.auto()


class Rule(NamedTuple):
    """Rule that names the branches of one level of a tree."""

    kind: RuleKind
    tree_id: int
    level: int = 0
    order: int = 0
    field: str = ""
    regex: str = ""
    separator: str = ""
    description: str = ""
    notes: str = ""
    custom_field: str = ""
    regex_group: int = 0
    display_format: str = ""


class Branch(NamedTuple):
    """A branch of a tree: the names on its path, from the root to the branch, both included."""

    path: tuple[str, ...]


class Leaf(NamedTuple):
    """A series in a branch."""

    display_name: str
    tsuid: str

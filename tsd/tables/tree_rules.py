"""Where the rules of a tree place a series, by its names and their custom metadata. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tsd.codec.metadata import ROOT, Rule, RuleKind
from tsd.errors import TsdError
from tsd.lazy import LazyModule

if TYPE_CHECKING:
    from tsd.codec import regex
else:  # few daemons have trees
    regex = LazyModule("tsd.codec.regex")

LONGEST_PATTERN = 500
LONGEST_NAME = 10_000  # characters that a pattern is matched against


class BadRule(TsdError):
    """A rule that is incomplete or cannot be applied."""


class NamedSeries(NamedTuple):
    """A series with its names and their custom metadata."""

    tsuid: str
    metric: str
    tags: Sequence[tuple[str, str]]
    metric_custom: Mapping[str, str | None]
    tagk_custom: Mapping[str, Mapping[str, str | None]]  # by tag name
    tagv_custom: Mapping[str, Mapping[str, str | None]]  # by tag name


class Placed(NamedTuple):
    """The place that the rules give a series."""

    path: tuple[str, ...]  # from the root to the leaf; the root alone: not placed
    messages: tuple[str, ...]  # the result of each rule
    missed: bool  # no rule of some level matched

    @property
    def is_placed(self) -> bool:
        """Whether the path has a leaf."""
        return len(self.path) > 1


def check_rule(rule: Rule) -> None:
    """Raise BadRule unless a rule can be applied."""
    name = rule.kind.name
    if rule.kind in (RuleKind.TAGK, RuleKind.TAGK_CUSTOM, RuleKind.TAGV_CUSTOM) and not rule.field:
        raise BadRule(f"Missing field name required for {name} rule")
    if name.endswith("_CUSTOM") and not rule.custom_field:
        raise BadRule(f"Missing custom field name required for {name} rule")
    if rule.level < 0 or rule.order < 0 or rule.regex_group < 0:
        raise BadRule("Invalid level, order or regex group index: negative")
    for pattern in (rule.regex, rule.separator):
        if len(pattern) > LONGEST_PATTERN:
            raise BadRule(f"got a pattern of {len(pattern)} characters, wanted at most {LONGEST_PATTERN}")
        try:
            groups = re.compile(pattern).groups
        except (re.error, RecursionError, OverflowError) as exc:
            raise BadRule(f"{pattern}: {exc}") from exc
    if rule.regex and re.compile(rule.regex).groups < rule.regex_group:
        raise BadRule(f"Regex group index {rule.regex_group} is beyond the {groups} groups of {rule.regex}")


def place(series: NamedSeries, rules: Iterable[Rule]) -> Placed:
    """Return where the rules place a series. The first rule that matches names a level, or several levels if it splits.

    >>> rules = [Rule(RuleKind.METRIC, 1, separator=r"\\."), Rule(RuleKind.TAGK, 1, level=1, field="host")]
    >>> place(NamedSeries("", "sys.cpu", [("host", "web01")], {}, {}, {}), rules).path
    ('ROOT', 'sys', 'cpu', 'web01')
    """
    path = [ROOT]
    messages = []
    levels: dict[int, list[Rule]] = {}
    for rule in sorted(rules, key=lambda rule: (rule.level, rule.order)):
        levels.setdefault(rule.level, []).append(rule)
    missed = False
    for level, candidates in levels.items():
        for rule in candidates:
            names, message = _apply(series, rule)
            messages.append(message)
            if names:
                path += names
                break
        else:
            missed = True
            messages.append(f"No rule on level [{level}] matched")
    return Placed(tuple(path), tuple(messages), missed)


def _apply(series: NamedSeries, rule: Rule) -> tuple[list[str], str]:
    """Return the names that a rule gives, none if it does not match, and a message."""
    where = f"rule: [{rule.tree_id}:{rule.level}:{rule.order}:{rule.kind.name}]"
    value = _value(series, rule)
    if not value:
        return [], f"No match on {where}"
    if any(
        pattern and (regex.is_costly(pattern) or regex.is_costly_on(pattern, len(value)))
        for pattern in (rule.regex, rule.separator)
    ):
        return [], f"Takes too long on {where}: [{value}]"
    if rule.regex:
        found = re.search(rule.regex, value[:LONGEST_NAME])
        extracted = found[rule.regex_group] if found else None
        if not extracted:
            return [], f"Failed regex on {where}: [{value}]"
        return [_shown(series, rule, value, extracted)], f"Matched {where}: [{extracted}]"
    parts = [part for part in re.split(rule.separator, value[:LONGEST_NAME]) if part] if rule.separator else [value]
    return [_shown(series, rule, value, part) for part in parts], f"Matched {where}: {parts}"


def _value(series: NamedSeries, rule: Rule) -> str | None:
    """Return the text that a rule is applied to."""
    match rule.kind:
        case RuleKind.METRIC:
            return series.metric
        case RuleKind.METRIC_CUSTOM:
            return series.metric_custom.get(rule.custom_field)
        case RuleKind.TAGK:
            return dict(series.tags).get(rule.field)
        case RuleKind.TAGK_CUSTOM:
            return series.tagk_custom.get(rule.field, {}).get(rule.custom_field)
        case RuleKind.TAGV_CUSTOM:
            return series.tagv_custom.get(rule.field, {}).get(rule.custom_field)


def _shown(series: NamedSeries, rule: Rule, value: str, extracted: str) -> str:
    """Return a name in its display format."""
    if not rule.display_format:
        return extracted
    tag = rule.field if rule.kind is not RuleKind.METRIC else ""
    words = {"{ovalue}": value, "{value}": extracted, "{tag_name}": tag, "{tsuid}": series.tsuid}
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], rule.display_format)

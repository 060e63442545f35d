"""Rules: which table, row key and column the points of a metric have (FORMATS.md in this folder)."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tsd.codec.tall.fields import encode_field, parse_field
from tsd.codec.tall.template import RowTime, Template, parse_template
from tsd.errors import CorruptRow

ANY = "*"
_TABLE = re.compile(r"[-_.A-Za-z0-9]{1,48}")


class Place(NamedTuple):
    """Where the points of a series are."""

    prefix: bytes  # of row keys
    field: bytes  # of columns


class TableRule(NamedTuple):
    """A table, and the metrics whose points are in it."""

    table: str
    template: Template
    metrics: str  # a name, or the start of names and an asterisk

    @property
    def labels(self) -> list[bytes]:
        """Columns that have tags."""
        return [field.label.encode() for field in self.template.fields if field.label]

    def field_of(self, metric: str) -> str | None:
        """Return the field of a metric, None if the rule does not apply to it.

        >>> parse_rules("QUOTE {symbol}#{ts} quote.*")[0].field_of("quote.bid")
        'bid'
        """
        start = self.metrics.removesuffix(ANY)
        if start == self.metrics:
            own = "" if self.template.time is RowTime.DAY else metric
            return own if metric == self.metrics else None
        return metric[len(start) :] or None if metric.startswith(start) else None

    def metric_of(self, field: str) -> str:
        """Return the metric of a field. Raise CorruptRow."""
        start = self.metrics.removesuffix(ANY)
        metric = start + field if start != self.metrics else start
        if self.field_of(metric) != field:
            raise CorruptRow(f"column: got the field {field!r}, wanted one of {self.metrics}")
        return metric

    def place(self, metric: str, tags: Mapping[str, str]) -> Place:
        """Return the place of a series that the rule applies to. Raise ValueError."""
        field = self.field_of(metric)
        if field is None:
            raise ValueError(f"got the metric {metric}, wanted {self.metrics}")
        if field.encode("latin-1") in self.labels:
            raise ValueError(f"got the metric {metric}, whose column {field} has a tag")
        prefix = self.template.prefix(tags)
        own = {field.tag for field in self.template.fields}
        return Place(prefix, encode_field(field, {name: tags[name] for name in tags if name not in own}))

    def names(self, place: Place) -> tuple[str, dict[str, str]]:
        """Return metric and tags of a place. Raise CorruptRow."""
        field, others = parse_field(place.field)
        return self.metric_of(field), self.template.parse_prefix(place.prefix) | others


def parse_rules(text: str) -> Sequence[TableRule]:
    """Return the rules of a setting: TABLE TEMPLATE METRICS, separated by semicolons. Raise ValueError.

    >>> parse_rules("METRIC {host}#{ts} *")[0].template.shown()
    '{host}#{ts}'
    """
    rules: list[TableRule] = []
    for part in filter(None, map(str.strip, text.split(";"))):
        words = part.split()
        if len(words) != 3:
            raise ValueError(f"got {part!r}, wanted TABLE TEMPLATE METRICS, as METRIC {{host}}#{{ts}} *")
        table, template, metrics = words
        if not _TABLE.fullmatch(table) or table in [rule.table for rule in rules]:
            raise ValueError(f"got the table {table!r}, wanted up to 48 letters, digits, -, _ and ., each table once")
        if ANY in metrics[:-1]:
            raise ValueError(f"{table}: got the metrics {metrics!r}, wanted a name, or the start of names and *")
        try:
            parsed = parse_template(template)
        except ValueError as exc:
            raise ValueError(f"{table}: {exc}") from None
        labels = [field.label for field in parsed.fields if field.label]
        if len(set(labels)) < len(labels) or any("#" in label for label in labels):
            raise ValueError(f"{table}: got the columns {', '.join(labels)}, wanted each once, without #")
        rules.append(TableRule(table, parsed, metrics))
    if not rules:
        raise ValueError("got nothing, wanted TABLE TEMPLATE METRICS, as METRIC {host}#{ts} *")
    return rules


def rule_of(rules: Sequence[TableRule], metric: str) -> TableRule | None:
    """Return the first rule that applies to a metric, None if there is none.

    >>> rule_of(parse_rules("Q {symbol}#{ts} q.*; METRIC {host}#{ts} *"), "cpu").table
    'METRIC'
    """
    return next((rule for rule in rules if rule.field_of(metric) is not None), None)

"""Stored points in the form in which they are compared with the lines that were sent."""

from typing import NamedTuple

from tsd.cli.torture.senders import Numbers, SentSeries, Values


class StoredRow(NamedTuple):
    """Points of a series: of one hour, where the tables have rows by hour."""

    series: SentSeries
    times: Numbers  # as in the lines: in seconds or ms
    values: Values


class DecodedPage(NamedTuple):
    """A page of rows."""

    rows: list[StoredRow]
    corrupt: list[str]  # errors of rows that cannot be read

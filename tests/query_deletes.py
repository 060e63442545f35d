"""Which hours queries that delete removed from a real OpenTSDB 2.4.1 on HBase."""

from collections.abc import Iterator
from typing import NamedTuple

HOUR_S = 3600
FIRST_S = 1356998400  # the start of hour 0
HOURS = range(-3, 8)  # with a point each, one minute after the start


class DeleteCase(NamedTuple):
    """A query of the series, and the hours that are gone after it. A downsampler widens the range that is read."""

    start_s: int  # relative to the start of hour 0
    end_s: int
    functions: str  # between the aggregator and the metric
    deleted: tuple[int, ...]

    def m(self, metric: str) -> str:
        """Return the sub query."""
        return f"sum:{self.functions}{metric}{{host=a}}"


FUNCTIONS = ("", "10m-avg:", "rate:", "1h-sum:", "rate:1h-sum:", "0all-sum:")
SPANS = {  # the hours by start and end
    (3600, 7199): (1, 2),
    (3600, 7200): (1, 2),
    (4000, 5000): (1,),
}
WIDER = {(3600, 7199): (0, 1, 2, 3), (3600, 7200): (0, 1, 2, 3), (4000, 5000): (0, 1)}  # with buckets of two hours


def _cases() -> Iterator[DeleteCase]:
    for functions in (*FUNCTIONS, "2h-sum:"):
        for span, hours in (WIDER if functions == "2h-sum:" else SPANS).items():
            yield DeleteCase(*span, functions, hours)
            yield DeleteCase(*span, f"explicit_tags:{functions}", (*hours, hours[-1] + 1))  # also the end of the range


CASES = list(_cases())

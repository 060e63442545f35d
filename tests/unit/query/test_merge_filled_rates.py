"""Rates of series filled by calendar: the bucket before the first answered one leads them."""

from tests.query_vectors import QueryRequest, answer
from tsd.query.model import RateOptions
from tsd.query.parse.times import read_downsample


def test_first_rate_starts_from_the_fill_of_the_bucket_before() -> None:
    """As OpenTSDB's iterators have it. It used to be that from a 0 in 1970, which the other series' rates were added
    to where later resets are dropped."""
    spec = read_downsample("5h-last-zero", zone="Asia/Kolkata", use_calendar=True)
    options = RateOptions(counter=True, drop_resets=True)
    query = QueryRequest("m", "mimmax", 1356998461000, 1357257600000, spec, options, {}, {}, True)
    [points] = answer([{1356998400000: 7}, {1357097400000: 1.0}], [range(2)], query)
    assert points[1357014600000] == 7 / 18000
    assert points[1357032600000] == 0.0

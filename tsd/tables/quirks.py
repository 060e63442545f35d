"""OpenTSDB's unintended behaviour that answers reproduce, one flag each (docs/compat/query.md §21)."""

from typing import NamedTuple


class Quirks(NamedTuple):
    """Which quirks to reproduce. A request with `corrected` reproduces none."""

    # Requests
    mistakes_as_500: bool = True  # some mistakes of clients have status 500
    durations_skip_text: bool = True  # 1.5h is 1h: text between the digits and the unit is ignored
    decimals_run_together: bool = True  # 1356998400.5 is 13569984005 ms: decimals are appended, whatever their number
    last_filter_list: bool = True  # of `tags` and `filters` in a body only the later one counts
    equal_without_grouping: bool = True  # sub queries that differ only in what they group by are one
    refuses_not_key: bool = True  # the documented filter not_key does not exist
    # Series
    loose_wildcards: bool = True  # a wildcard with text on both sides checks neither end, and its pieces may overlap
    forgets_literals: bool = True  # several literal filters on one tag name: united or forgotten, not intersected
    fuzzy_filter: bool = True  # the filter for explicit tags misses series and reads an hour more
    tsuid_filters_pass_all: bool = True  # a filter that any value passes does not require its tag of a TSUID
    # Times
    nominal_calendar: bool = True  # the hours to read follow from calendar units of fixed length: a month is 30 days
    omits_first_bucket: bool = True  # the bucket that contains the start is omitted, because its timestamp is earlier
    annotations_by_number: bool = True  # times of annotations are compared without regard to their units
    repeats_seconds: bool = True  # several points in one second become repeated JSON keys
    # Numbers
    rate_from_1970: bool = True  # a series' first rate is computed from a value of 0 in 1970
    bucket_before_range: bool = True  # fills begin with the bucket before the range, which rates start from
    plain_percentiles: bool = True  # estimated percentiles of doubles are computed like those without estimation
    # Rollups
    whole_rollup_rows: bool = True  # a bucket longer than a row of rollups is read in part
    fallback_interval: bool = True  # raw points in place of rollups are downsampled by the rollups' interval
    # gexp
    numbers_metric_queries: bool = True  # the n-th metric query of expressions is the n-th sub query of the request
    pairs_by_place: bool = True  # arithmetic pairs points by their places, not by their times, and takes NaN for 0
    ranks_columns: bool = True  # rankings compare columns, which several series share
    alias_is_absolute: bool = True  # alias() shows absolute values
    refuses_shifts: bool = True  # timeShift() fails
    # exp
    single_literals: bool = True  # decimal literals of expressions are 32-bit floats
    ignores_fills: bool = True  # fill policies of metrics and downsamplers have no effect in some places
    uncut_metrics: bool = True  # metrics as outputs also show times outside of the query's range
    rows_once: bool = True  # of an expression that is shown several times only the first output has rows
    loses_capitals: bool = True  # variables with capitals have no results
    tags_of_first_variable: bool = True  # a series that the first variable lacks is shown without tags
    # query/last
    scans_single_series: bool = True  # a back scan with all tags given matches only the series with exactly these tags


OPENTSDB = Quirks()
CORRECTED = Quirks(*[False] * len(Quirks._fields))


def quirks_for(corrected: bool) -> Quirks:
    """Return the quirks to reproduce; none for a corrected answer."""
    return CORRECTED if corrected else OPENTSDB

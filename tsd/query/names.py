"""The words of a query: what aggregators there are (query.md §12)."""

NONE = "none"  # every series for itself; no function to downsample with
RANKS = ("50", "75", "90", "95", "99", "999")  # 999: 99.9 %

AGGREGATORS = (
    *("sum", "min", "max", "avg", "none", "median", "mult", "dev", "diff", "count"),
    *("zimsum", "mimmin", "mimmax", "first", "last", "pfsum", "squareSum"),
    *(f"p{rank}" for rank in RANKS),
    *(f"ep{rank}r{kind}" for kind in "37" for rank in RANKS),
)

"""What stands beside the raw points, for the engine: rollups and histograms, each if it is configured."""

from tsd.errors import BadQuery
from tsd.query.answers import Group
from tsd.query.echo import is_histogram
from tsd.query.gathering import Gathered, Tally
from tsd.query.histograms import HistogramReader
from tsd.query.limits import Allowance
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.rollups import RollupReader
from tsd.query.selecting import Selection


class Beside:
    """Both of them."""

    def __init__(self, rollups: RollupReader | None, histograms: HistogramReader | None) -> None:
        self._rollups = rollups
        self._histograms = histograms

    async def gather(self, query: Query, plan: Plan, selection: Selection, allowance: Allowance) -> Gathered | None:
        """The points of a plan's series out of a rollup table; None where the raw ones are to be read. Raises BadQuery,
        StoreError."""
        return None if self._rollups is None else await self._rollups.gather(query, plan, selection, allowance)

    async def histograms(
        self, query: Query, plan: Plan, selection: Selection, metric: str, allowance: Allowance
    ) -> tuple[list[Group], Tally] | None:
        """The groups of a plan that asks for percentiles or buckets, and what was read for them; None where it asks for
        none. Raises BadQuery, StoreError."""
        if not is_histogram(plan.sub):
            return None
        if self._histograms is None:
            raise BadQuery(
                "Histogram storage has not been enabled. Check the 'tsd.core.histograms.config' configuration."
            )
        return await self._histograms.groups(query, plan, selection, metric, allowance)

"""Settings of tables with rows of events or days."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsd.config.keys import setting, settings_section
from tsd.lazy import LazyModule

if TYPE_CHECKING:
    from tsd.codec.tall import rules
else:  # other layouts have no rules
    rules = LazyModule("tsd.codec.tall.rules")


@settings_section
class TallSettings:
    """Which tables there are, how their row keys are made, and which metrics they have."""

    # fmt: off

    tall_rules: str = setting(
        "tsd.tall.tables", "METRIC {host}#{ts} *",
        "With tsd.storage.layout = tall: tables, each with the template of its row keys and its metrics, separated by "
        "semicolons. A template has tags in braces, and {ts} or {day} at the end; metrics are a name, or the start of "
        "names and *. The first that applies to a metric has its points (docs/tall.md).")
    tall_series: str = setting(
        "tsd.tall.series_table", "tall-series",
        "The table that lists the series of these tables.")

    # fmt: on

    def tall_tables(self) -> "Sequence[rules.TableRule]":
        """Return the rules. Raises ValueError."""
        return rules.parse_rules(self.tall_rules)

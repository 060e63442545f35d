"""Settings of Heroic's tables."""

import re

from tsd.config.keys import setting, settings_section

NAME_CHARACTERS = b"!#$%&'()+,:;@[]^{}~"  # of Heroic's names, besides those of OpenTSDB's


@settings_section
class HeroicSettings:
    """Whether Heroic's clients are served, where its points are, and which tags are its resources."""

    # fmt: off

    heroic: bool = setting(
        "tsd.heroic.enabled", False,
        "Take points by Heroic's POST /write (docs/http.md). Always on with Heroic's table.")

    heroic_table: str = setting(
        "tsd.heroic.table", "metrics",
        "With tsd.storage.layout = heroic: the table of points, Heroic's own or a new one.")
    heroic_series: str = setting(
        "tsd.heroic.series_table", "metrics-series",
        "The table that lists the series of that table. Heroic does not use it.")
    heroic_resource_tags: str = setting(
        "tsd.heroic.resource_tags", "",
        "Tags that are stored as Heroic's resource, after the time in a row key, separated by commas: host, podname. "
        "To clients they are tags as all others.")

    # fmt: on

    @property
    def resource_tags(self) -> frozenset[str]:
        """Return the names of tags that are a resource."""
        return frozenset(filter(None, re.split(r"[\s,]+", self.heroic_resource_tags)))

"""Settings of the table layouts, and of the tables of entities."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsd.config.keys import setting, settings_section
from tsd.lazy import LazyModule

if TYPE_CHECKING:
    from tsd.codec.tall import rules
else:  # other layouts have no rules
    rules = LazyModule("tsd.codec.tall.rules")

LAYOUTS = OPENTSDB, KAIROSDB, HEROIC, TALL = ("opentsdb", "kairosdb", "heroic", "tall")
NAME_CHARACTERS = b"!#$%&'()+,:;@[]^{}~"  # of Heroic's names, besides those of OpenTSDB's
NO_PERIOD = "0"  # of entities


@settings_section
class LayoutSettings:
    """Which layout the tables have."""

    # fmt: off

    layout: str = setting(
        "tsd.storage.layout", OPENTSDB,
        "opentsdb: OpenTSDB's rows. kairosdb: KairosDB's tables in tsd.storage.cassandra.keyspace, which requires "
        "tsd.storage.backend = cassandra. heroic: Heroic's rows, of tsd.heroic.table. tall: rows of "
        "events or days, of tsd.tall.tables. With the last three, metrics are created unless "
        "tsd.core.auto_create_metrics is false.")

    # fmt: on

    @property
    def has_opentsdb_tables(self) -> bool:
        """Whether points are stored in OpenTSDB's tables."""
        return self.layout == OPENTSDB

    @property
    def has_heroic_tables(self) -> bool:
        """Whether points are stored in Heroic's table."""
        return self.layout == HEROIC

    @property
    def has_tall_tables(self) -> bool:
        """Whether points are stored in rows of events or days."""
        return self.layout == TALL

    @property
    def has_kairosdb_tables(self) -> bool:
        """Whether points are stored in KairosDB's tables."""
        return self.layout == KAIROSDB


@settings_section
class KairosSettings:
    """Whether KairosDB's clients are served, and who else writes its tables."""

    # fmt: off

    kairosdb: bool = setting(
        "tsd.kairosdb.enabled", False,
        "Answer KairosDB's REST API, from /api/v1/datapoints on (docs/kairosdb.md). Always on with KairosDB's tables.")
    kairosdb_dialect: bool = setting(
        "tsd.kairosdb.dialect", False,
        "Where OpenTSDB and KairosDB differ on the port, speak KairosDB's dialect: the telnet commands put, putm and "
        "puts, and version. Telnet lines are then read as UTF-8, or as ISO-8859-1 where they are not valid UTF-8. "
        "Needs tsd.kairosdb.enabled, or KairosDB's tables.")
    kairosdb_shared: bool = setting(
        "tsd.storage.kairosdb.shared", True,
        "A KairosDB writes to the same tables. Deletes then leave index rows, because a running KairosDB does not "
        "write them again. False: deletes remove them, as those of KairosDB do.")
    kairosdb_tag_indexed: str = setting(
        "tsd.storage.kairosdb.tag_indexed_metrics", "",
        "Metrics whose rows are listed by each tag, too, separated by commas; * for all. As in KairosDB's "
        "tag_indexed_row_key_lookup_metrics.")

    # fmt: on


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
        """Return the rules. Raise ValueError."""
        return rules.parse_rules(self.tall_rules)


@settings_section
class EntitySettings:
    """Whether the tables of entities are kept, and what an entity is."""

    # fmt: off

    entity: bool = setting(
        "tsd.entity.enabled", False,
        "Write points to the tables tsdb-entity and tsdb-current, too: all points of an entity, such as a host, in one "
        "row, and the newest values of all entities. They need the embedded store, Bigtable, or HBase with "
        "tsd.storage.hbase.thrift2. `tsd create-tables` makes them.")
    entity_tag: str = setting(
        "tsd.entity.tag", "host",
        "The tag whose value is the entity. Points without it have no entity.")
    entity_period: str = setting(
        "tsd.entity.period", "",
        "How much time a row of tsdb-entity has: a number of h, d, w, n (30 d) or y (365 d), as 30d; 0 for one row an "
        "entity. Empty: 1d on Bigtable, which bounds rows, and 0 elsewhere. Do not change it later.")
    entity_salt: int = setting(
        "tsd.entity.salt", 0,
        "Prefix row keys with a hash of the name modulo this number, so that names which follow each other are spread. "
        "Newest values are then read by as many scans. 0: no prefix. Do not change it later.",
        low=0, high=99)

    # fmt: on

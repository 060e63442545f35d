"""Settings of KairosDB's tables, endpoints and telnet dialect."""

from tsd.config.keys import setting, settings_section

LAYOUTS = OPENTSDB, KAIROSDB, HEROIC, TALL = ("opentsdb", "kairosdb", "heroic", "tall")


@settings_section
class KairosSettings:
    """Which layout the tables have, and whether KairosDB's clients are served."""

    # fmt: off

    kairosdb: bool = setting(
        "tsd.kairosdb.enabled", False,
        "Answer KairosDB's REST API, from /api/v1/datapoints on (docs/kairosdb.md). Always on with KairosDB's tables.")
    kairosdb_dialect: bool = setting(
        "tsd.kairosdb.dialect", False,
        "Where OpenTSDB and KairosDB differ on the port, speak KairosDB's dialect: the telnet commands put, putm and "
        "puts, and version. Telnet lines are then read as UTF-8, or as ISO-8859-1 where they are not valid UTF-8. "
        "Needs tsd.kairosdb.enabled, or KairosDB's tables.")
    layout: str = setting(
        "tsd.storage.layout", OPENTSDB,
        "opentsdb: OpenTSDB's rows. kairosdb: KairosDB's tables in tsd.storage.cassandra.keyspace, which requires "
        "tsd.storage.backend = cassandra. heroic: Heroic's rows, of tsd.heroic.table. tall: rows of "
        "events or days, of tsd.tall.tables. With the last three, metrics are created unless "
        "tsd.core.auto_create_metrics is false.")
    kairosdb_shared: bool = setting(
        "tsd.storage.kairosdb.shared", True,
        "A KairosDB writes to the same tables. Deletes then leave index rows, because a running KairosDB does not "
        "write them again. False: deletes remove them, as those of KairosDB do.")
    kairosdb_tag_indexed: str = setting(
        "tsd.storage.kairosdb.tag_indexed_metrics", "",
        "Metrics whose rows are listed by each tag, too, separated by commas; * for all. As in KairosDB's "
        "tag_indexed_row_key_lookup_metrics.")

    # fmt: on

    @property
    def has_opentsdb_tables(self) -> bool:
        """Return whether points are stored in OpenTSDB's tables."""
        return self.layout == OPENTSDB

    @property
    def has_heroic_tables(self) -> bool:
        """Return whether points are stored in Heroic's table."""
        return self.layout == HEROIC

    @property
    def has_tall_tables(self) -> bool:
        """Return whether points are stored in rows of events or days."""
        return self.layout == TALL

    @property
    def has_kairosdb_tables(self) -> bool:
        """Return whether points are stored in KairosDB's tables."""
        return self.layout == KAIROSDB

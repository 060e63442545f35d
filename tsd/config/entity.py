"""Settings of entities."""

from tsd.config.keys import setting, settings_section

NO_PERIOD = "0"


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

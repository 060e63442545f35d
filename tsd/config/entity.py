"""Settings of entities."""

from dataclasses import dataclass

from tsd.config.keys import setting


@dataclass(frozen=True)
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

    # fmt: on

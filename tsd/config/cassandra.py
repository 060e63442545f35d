"""Settings of Cassandra, and of KairosDB's tables on it."""

from dataclasses import dataclass

from tsd.config.keys import setting

LAYOUTS = OPENTSDB, KAIROSDB = ("opentsdb", "kairosdb")


@dataclass(frozen=True)
class CassandraSettings:
    """How Cassandra is reached, and which tables it has."""

    # fmt: off

    cassandra_hosts: str = setting(
        "tsd.storage.cassandra.hosts", "127.0.0.1:9042",
        "Nodes of Cassandra to begin with, host:port separated by commas. The others are found through them.")
    cassandra_keyspace: str = setting(
        "tsd.storage.cassandra.keyspace", "tsd",
        "Keyspace of all tables. `tsd create-tables` creates it with up to three replicas in each data centre.")
    cassandra_consistency: str = setting(
        "tsd.storage.cassandra.consistency", "QUORUM",
        "QUORUM, LOCAL_QUORUM or ALL, for reads and writes. With fewer replicas a daemon would not read what it wrote. "
        "LOCAL_QUORUM: only for daemons of one data centre, because others could assign the same UID.")
    cassandra_user: str = setting("tsd.storage.cassandra.user", "", "User. Empty: no authentication.")
    cassandra_password: str = setting(
        "tsd.storage.cassandra.password", "",
        "File with the user's password, for example credential:cassandra.password.")
    cassandra_ca: str = setting(
        "tsd.storage.cassandra.tls.ca", "",
        "Certificates of the authorities that sign the nodes' certificates. Names in these are not compared with "
        "addresses: use an authority of the cluster's own. Empty: no TLS.")
    cassandra_certificate: str = setting(
        "tsd.storage.cassandra.tls.certificate", "", "Certificate of this client, if the nodes ask for one.")
    cassandra_key: str = setting("tsd.storage.cassandra.tls.key", "", "Key of this client's certificate.")
    cassandra_timeout_ms: int = setting(
        "tsd.storage.cassandra.timeout", 12000,
        "Timeout of one request. Keep it above the timeouts in cassandra.yaml.", "ms", low=100)
    layout: str = setting(
        "tsd.storage.layout", OPENTSDB,
        "opentsdb: OpenTSDB's rows. kairosdb: KairosDB's tables in tsd.storage.cassandra.keyspace, which requires "
        "tsd.storage.backend = cassandra. Metrics are then created unless tsd.core.auto_create_metrics is false.")
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
    def has_kairosdb_tables(self) -> bool:
        """Return whether points are stored in KairosDB's tables."""
        return self.layout == KAIROSDB

"""Settings of Cassandra."""

from tsd.config.keys import setting, settings_section


@settings_section
class CassandraSettings:
    """How Cassandra is reached."""

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
        "Certificates of the authorities that sign the nodes' certificates. Empty: no TLS.")
    cassandra_checks_names: bool = setting(
        "tsd.storage.cassandra.tls.check_names", False,
        "Whether a node's certificate must name the node's address. Nodes are found by their IP addresses. Without it, "
        "use an authority of the cluster's own.")
    cassandra_certificate: str = setting(
        "tsd.storage.cassandra.tls.certificate", "", "Certificate of this client, if the nodes ask for one.")
    cassandra_key: str = setting("tsd.storage.cassandra.tls.key", "", "Key of this client's certificate.")
    cassandra_timeout_ms: int = setting(
        "tsd.storage.cassandra.timeout", 12000,
        "Timeout of one request. Keep it above the timeouts in cassandra.yaml.", "ms", low=100)
    cassandra_clock_limit_ms: int = setting(
        "tsd.storage.cassandra.clock_limit", 50_000,
        "Largest difference of this machine's clock from those of Cassandra's nodes. Above it nothing is written: "
        "points wait in the journal, and commands fail. A compaction could delete points unseen otherwise. "
        "At most a quarter of tsd.storage.compaction.span_age. 0: no limit, for clocks that are never set back.", "ms",
        low=0)

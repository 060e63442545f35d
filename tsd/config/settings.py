"""All settings: key, type, default, unit, bounds and meaning. conf/tsd.conf is generated from them (`template`).

Keys that OpenTSDB has keep their name and meaning. `tsd.config.loader` lists OpenTSDB's keys that have no effect here,
so that an existing file loads.
"""

from dataclasses import dataclass
from enum import Enum

from tsd.config.bigtable import BigtableSettings
from tsd.config.cassandra import CassandraSettings
from tsd.config.keys import setting
from tsd.config.layouts import NO_PERIOD, EntitySettings, HeroicSettings, KairosSettings, LayoutSettings, TallSettings
from tsd.config.limits import LimitSettings
from tsd.config.retention import parse_age

# Sections of conf/tsd.conf: title -> the keys that begin it, in the order of the fields of Config, and an introduction.
SECTIONS = {
    "access": (("tsd.network.allow",), ""),
    "TLS": (("tsd.tls.certificate",), ""),
    "limits": (
        ("tsd.network.connections_per_address", "tsd.network.proxy_protocol"),
        "Limits protect clients from each other. A client's share is not limited by default: the right values depend "
        "on the fleet. What protects the daemon itself (new_names_pace, partial_input_memory) is on. "
        "docs/limits.md explains how to choose them. A client is an address; if clients log in, it is each account at "
        "each address.",
    ),
    "network": (("tsd.network.port",), ""),
    "names": (("tsd.core.auto_create_metrics",), ""),
    "storage": (("tsd.storage.layout", "tsd.storage.backend"), ""),
    "Bigtable": (("tsd.storage.bigtable.project",), ""),
    "Cassandra": (("tsd.storage.cassandra.hosts",), ""),
    "compaction": (
        ("tsd.storage.enable_compaction",),
        "A round of compaction takes rows waiting × flush_interval × flush_speed / 3600 rows, oldest first: at least "
        "min_flush_threshold and at most 10,000. No round runs while the store is slow or points cannot be written. "
        "`tsd compact` finds rows that the daemon does not know: written by other daemons, or before its start.",
    ),
    "retention": (
        ("tsd.retention.rules",),
        "Points that are too old are deleted, an hour of a metric at a time. `tsd retention --dry-run` shows what the "
        "rules would delete. Without rules everything is kept.",
    ),
    "rollups and histograms": (("tsd.rollups.enable",), ""),
    "series metadata": (("tsd.core.meta.enable_tsuid_tracking",), ""),
    "queries": (("tsd.query.corrected",), ""),
    "journal": (("tsd.journal.path",), ""),
    "ingest": (("tsd.ingest.memory_limit",), ""),
    "HTTP": (("tsd.core.enable_api",), ""),
    "KairosDB": (("tsd.kairosdb.enabled",), ""),
    "Heroic": (("tsd.heroic.enabled",), ""),
    "rows of events and days": (("tsd.tall.tables",), ""),
    "entities": (("tsd.entity.enabled",), ""),
    "logging and statistics": (("tsd.canary.enable",), ""),
}

DAY_S = 86400
AUDIENCES = ("all", "authenticated", "read", "admin")  # of /health and /metrics, from least to most restrictive

# fmt: off


@dataclass(frozen=True)
class AccessSettings:
    """Settings of access: networks, authentication, TLS. `None` stands for a default that depends on other settings."""

    network_allow: str = setting(
        "tsd.network.allow", "",
        "Networks that may connect, separated by commas: 10.0.0.0/8, fd00::/8. Connections from other networks are "
        "closed at once. Empty: all networks. SIGHUP reloads all lists of networks and closes connections that are "
        "no longer allowed.")
    authentication: bool = setting(
        "tsd.core.authentication.enable", False,
        "Clients must authenticate with an account of tsd.auth.file: `auth TOKEN` on telnet, Basic or Bearer on "
        "HTTP, or a TLS client certificate (docs/security.md).")
    auth_file: str = setting(
        "tsd.auth.file", "",
        "File of accounts, one line each, as `tsd token` writes it. It must not be readable by other users. The "
        "daemon reloads it when it changes, and on SIGHUP.")
    anonymous: str | None = setting(
        "tsd.access.anonymous", None,
        "Roles of clients that have not authenticated: read, write, admin. Unset: read,write without "
        "authentication, none with it. The role admin may drop caches, delete, rename, read the log and stop the "
        "daemon.", example="read,write")
    read_networks: str = setting(
        "tsd.access.read_networks", "",
        "Networks from which the role read is effective. Empty: all networks.")
    write_networks: str = setting(
        "tsd.access.write_networks", "",
        "Networks from which the role write is effective. Empty: all networks.")
    admin_networks: str = setting(
        "tsd.access.admin_networks", "",
        "Networks from which the role admin is effective. Empty: all networks.")
    health_for: str = setting(
        "tsd.access.health", "all",
        "Clients that may request /health: all, authenticated (with any role), read or admin.")
    metrics_for: str = setting(
        "tsd.access.metrics", "read",
        "Clients that may request /metrics: all, authenticated, read or admin.")

    tls_certificate: str = setting(
        "tsd.tls.certificate", "",
        "PEM file with the certificate and its intermediate certificates. If set, the port also accepts TLS; the "
        "first byte of a connection decides. The daemon reloads the file when it changes, and on SIGHUP. Empty: no "
        "TLS.")
    tls_key: str = setting(
        "tsd.tls.key", "",
        "PEM file with the private key. Empty: the key is in the certificate's file.")
    tls_required: bool = setting("tsd.tls.required", False, "Answer connections without TLS with an error.")
    tls_minimum: str = setting("tsd.tls.minimum", "1.2", "Oldest version of TLS that is accepted: 1.2 or 1.3.")
    tls_client_ca: str = setting(
        "tsd.tls.client_ca", "",
        "PEM file with the authorities that sign client certificates. Empty: the daemon requests no client "
        "certificates.")
    tls_client_certificate: str = setting(
        "tsd.tls.client_certificate", "optional",
        "Whether TLS clients must present a certificate of tsd.tls.client_ca: optional or required.")
    tls_client_crl: str = setting(
        "tsd.tls.client_crl", "",
        "PEM file with revocation lists (CRLs), one for each authority that signs client certificates. A "
        "certificate is refused if it is on a list, or if the list of its authority is missing or expired. The "
        "daemon reloads the file as it does the certificate. Empty: no check.")
    tls_hsts_s: int | None = setting(
        "tsd.tls.hsts", None,
        "How long browsers use only HTTPS with this host, on any port (Strict-Transport-Security). 0: the header is"
        " not sent. Unset: a day if tsd.tls.required is true, otherwise 0.", "s", low=0, example="0")

    proxy_protocol_networks: str = setting(
        "tsd.network.proxy_protocol", "",
        "Networks of load balancers that send the PROXY protocol (version 1 or 2), which names the client: "
        "HAProxy's send-proxy, proxy_protocol of AWS and nginx. All their connections must begin with that header. "
        "It is not accepted from other networks.")
    trusted_proxies: str = setting(
        "tsd.http.trusted_proxies", "",
        "Networks of HTTP proxies that add the client's address to X-Forwarded-For or Forwarded. These headers are "
        "ignored from other networks.")
    hosts: str | None = setting(
        "tsd.http.hosts", None,
        "Host headers that HTTP requests may have, against DNS rebinding (docs/security.md): names, *.example.com, "
        "addresses and networks, each with :PORT for that port only, separated by commas; * for all. Unset: all, but "
        "localhost, *.localhost, 127.0.0.0/8 and ::1 if the daemon listens on loopback addresses only.",
        example="tsd.example.com, 192.0.2.7:4242, [2001:db8::7]:4242")
    ipv6_prefix: int = setting(
        "tsd.network.ipv6_prefix", 64,
        "Length of the IPv6 prefix that counts as one client: one customer usually has a /64. Use 128 where the "
        "agents of a network share a /64.", "bits", low=16, high=128)

    @property
    def hsts_s(self) -> int:
        """Return how long browsers use only HTTPS, with the default resolved."""
        if self.tls_hsts_s is None:
            return DAY_S if self.tls_required else 0
        return self.tls_hsts_s


class Backend(Enum):
    """The storage engine."""

    EMBEDDED = "embedded"
    HBASE = "hbase"
    CASSANDRA = "cassandra"
    BIGTABLE = "bigtable"


class Mode(Enum):
    """What clients may do."""

    READ_WRITE = "rw"
    READ_ONLY = "ro"
    WRITE_ONLY = "wo"


class Charset(Enum):
    """The charset of telnet lines."""

    LATIN_1 = "iso-8859-1"
    UTF_8 = "utf-8"


@dataclass(frozen=True)
class Config(
    AccessSettings, LimitSettings, BigtableSettings, CassandraSettings, KairosSettings, LayoutSettings, HeroicSettings,
    TallSettings, EntitySettings,
):
    """The settings of one daemon or command. `None` stands for a default that depends on other settings."""

    port: int = setting(
        "tsd.network.port", 4242,
        "TCP port of the telnet and HTTP protocols; the first byte of a connection decides.", low=0, high=65535)
    bind: str = setting(
        "tsd.network.bind", "127.0.0.1",
        "Address to listen on. 0.0.0.0 or :: opens the port to the network: set up access first.")
    telnet_charset: Charset = setting(
        "tsd.network.telnet_charset", Charset.LATIN_1,
        "Charset of telnet lines: iso-8859-1, as in OpenTSDB, or utf-8. Names have characters of ISO-8859-1 only, in "
        "both cases and over HTTP; a line with others is refused.")
    backlog: int = setting(
        "tsd.network.backlog", 1024,
        "Connections that the kernel queues before they are accepted. A fleet that reconnects at once needs room "
        "here.", low=1, high=2**31 - 1)
    reuse_port: bool = setting(
        "tsd.network.reuse_port", False,
        "Let several daemons listen on the port (SO_REUSEPORT); the kernel distributes connections. For daemons of "
        "one user on HBase, each with its own state folder (tsd@.service). With tsd.socket, set ReusePort= there.")
    connections_limit: int = setting(
        "tsd.core.connections.limit", 0,
        "Open connections; further ones are closed at once. 0: the limit of open files (LimitNOFILE), minus a "
        "quarter, at most 600, for the journal and the store.", low=0)
    socket_timeout_s: int = setting(
        "tsd.core.socket.timeout", 0,
        "Close connections that sent nothing, or that do not read replies, for this long. 0: never, because agents "
        "may be quiet for long.", "s", low=0)
    mode: Mode = setting("tsd.mode", Mode.READ_WRITE, "rw: read and write; ro: no put; wo: write only.")
    no_diediedie: bool = setting(
        "tsd.no_diediedie", True,
        "Disable the telnet command `diediedie`, which stops the daemon. (OpenTSDB's default is false.)")
    drain_ms: int = setting(
        "tsd.core.drain_timeout", 60000,
        "On SIGTERM, how long the daemon writes pending points to the store. The rest stays in the journal until "
        "the next start. Keep it below systemd's TimeoutStopSec.", "ms", low=0)

    auto_create_metrics: bool | None = setting(
        "tsd.core.auto_create_metrics", None,
        "Assign UIDs to unknown metrics. Unset: true on the embedded store, false (as in OpenTSDB) on HBase, Cassandra "
        "and Bigtable, where a typing error would use up a UID.", example="true")
    auto_create_tagks: bool = setting("tsd.core.auto_create_tagks", True, "Assign UIDs to unknown tag names.")
    auto_create_tagvs: bool = setting("tsd.core.auto_create_tagvs", True, "Assign UIDs to unknown tag values.")
    allow_specialchars: str = setting(
        "tsd.core.tag.allow_specialchars", "",
        "Characters allowed in names in addition to a-z A-Z 0-9 - _ . / and letters of ISO-8859-1, e.g. `:@`. "
        "Blanks, = and line ends are refused nevertheless, because a put line cannot have them. All daemons on the "
        "same tables need the same value.")
    max_tags: int = setting(
        "tsd.storage.max_tags", 8,
        "Tags of a data point. Each one lengthens the keys of its rows; 5460 fill a key with UIDs of 3 bytes.", low=1)
    random_metrics: bool = setting(
        "tsd.core.uid.random_metrics", False,
        "Assign random instead of sequential metric UIDs, which spreads new metrics over HBase's regions.")
    width_metric: int = setting(
        "tsd.storage.uid.width.metric", 3,
        "Width of metric UIDs; 3 bytes suffice for 16,777,215 names. Never change it once there is data.",
        "bytes", 1, 8)
    width_tagk: int = setting(
        "tsd.storage.uid.width.tagk", 3,
        "Width of tag name UIDs. Never change it once there is data.", "bytes", 1, 8)
    width_tagv: int = setting(
        "tsd.storage.uid.width.tagv", 3,
        "Width of tag value UIDs. Never change it once there is data.", "bytes", 1, 8)
    name_cache: int = setting(
        "tsd.uid.lru.name.size", 1_000_000,
        "Cached UIDs by name, for each kind of name. Each takes about 40 bytes and the name.", "names", low=1000)
    id_cache: int = setting(
        "tsd.uid.lru.id.size", 1_000_000,
        "Cached names by UID, for each kind of name. Each takes about 40 bytes and the name.", "UIDs", low=1000)
    uid_cache_ttl_s: int = setting(
        "tsd.uid.cache_ttl", 600,
        "Time within which each cached name is looked up again, to notice renames and deletions by other processes."
        " `tsd uid` notifies the daemon of its state folder; `dropcaches` (telnet) works on any daemon.", "s", low=1)

    backend: Backend = setting(
        "tsd.storage.backend", Backend.EMBEDDED,
        "embedded: RocksDB in the state folder. hbase: HBase through its Thrift gateway. cassandra: Cassandra, in "
        "tables of its own; needs `pip install 'tsd-daemon[cassandra]'`. bigtable: Google Cloud Bigtable, in "
        "OpenTSDB's tables; needs `pip install 'tsd-daemon[bigtable]'`.")
    path: str = setting(
        "tsd.storage.path", "var",
        "State folder: journal, embedded store, control socket. Each daemon needs its own.")
    cache_bytes: int = setting(
        "tsd.storage.cache", 256 << 20,
        "Read cache of the embedded store. Dashboards are fastest if their rows fit into half of it.",
        "bytes", low=1 << 20)
    row_cache_bytes: int = setting(
        "tsd.storage.row_cache", 64 << 20,
        "Memory of the embedded store for hours of many series, packed as they are stored: those that queries read "
        "again are not read from RocksDB. Rows of few series take up to an eighth of it in addition. 0: none.",
        "bytes", low=0)
    thrift: str = setting(
        "tsd.storage.hbase.thrift", "127.0.0.1:9090",
        "HBase's Thrift gateways (`hbase thrift start`), host:port separated by commas. Calls are distributed over "
        "the gateways that answer.")
    thrift2: str = setting(
        "tsd.storage.hbase.thrift2", "",
        "HBase's gateways of Thrift 2 (`hbase thrift2 start`), host:port separated by commas, for tables whose cells "
        "keep versions. Their timeout, transport and protocol are those of tsd.storage.hbase.thrift. Empty: none, and "
        "no such tables.")
    thrift_connections: int = setting(
        "tsd.storage.hbase.thrift.connections", 8,
        "Connections to all gateways of a kind together, which is also the number of concurrent calls to them.",
        low=1, high=256)
    thrift_timeout_ms: int = setting(
        "tsd.storage.hbase.thrift.timeout", 15000,
        "Timeout of one call to a gateway. Region moves take seconds.", "ms", low=100)
    thrift_transport: str = setting(
        "tsd.storage.hbase.thrift.transport", "buffered",
        "Transport of the gateways: buffered or framed.")
    thrift_protocol: str = setting(
        "tsd.storage.hbase.thrift.protocol", "binary",
        "Protocol of the gateways: binary or compact.")
    data_table: str = setting("tsd.storage.hbase.data_table", "tsdb", "Table of points, on all engines.")
    uid_table: str = setting("tsd.storage.hbase.uid_table", "tsdb-uid", "Table of names and UIDs, on all engines.")
    tree_table: str = setting("tsd.storage.hbase.tree_table", "tsdb-tree", "Table of trees, on all engines.")
    meta_table: str = setting(
        "tsd.storage.hbase.meta_table", "tsdb-meta",
        "Table of series metadata, on all engines.")
    salt_width: int = setting(
        "tsd.storage.salt.width", 0,
        "Width of the salt before each row key, which spreads one metric over HBase's regions. 0: no salt. Never "
        "change it once there is data; all daemons on the same tables need the same value.", "bytes", 0, 8)
    salt_buckets: int = setting(
        "tsd.storage.salt.buckets", 20,
        "Number of salts. Never change it once there is data.", low=1)
    flush_interval_ms: int | None = setting(
        "tsd.storage.flush_interval", None,
        "Points of a row that arrive within it are written as one cell. They are in the journal meanwhile, and this "
        "daemon's queries see them. Other daemons see them this much later, and the loss of this machine's disk costs "
        "them. While open hours are held, a small window stays open for up to a minute, with tsd.entity.enabled for "
        "one interval. Unset: 30 s where tsd.storage.hold_open_hours holds points for a long interval, "
        "10 s elsewhere.", "ms", low=10, example="10000")
    join_points: bool = setting(
        "tsd.storage.join_points", True,
        "true: one cell for each row and window, the form that OpenTSDB's compaction writes. false: one cell for "
        "each point, as OpenTSDB writes them.")
    hold_open_hours: bool = setting(
        "tsd.storage.hold_open_hours", True,
        "With OpenTSDB's rows and join_points: points of the current hour stay in memory and in the journal, so that "
        "each row is written once: on the embedded store until two minutes after the end of the hour, on others for "
        "tsd.storage.flush_interval, if that exceeds ten seconds and tsd.entity.enabled is false. Queries see them. "
        "They leave early when a quarter of tsd.ingest.memory_limit or half of tsd.journal.max_bytes is used. false: "
        "each window is written.")
    fix_duplicates: bool = setting(
        "tsd.storage.fix_duplicates", True,
        "If a row has different values for one time, compaction keeps the newest. false (OpenTSDB's default): such "
        "rows are left alone and reported.")

    enable_compaction: bool = setting(
        "tsd.storage.enable_compaction", True,
        "Merge rows that have several cells into one cell once their hour is over.")
    blocks: bool = setting(
        "tsd.storage.blocks", True,
        "Embedded store with OpenTSDB's rows: store hours that are over in blocks, which have the cells of many "
        "series. That takes a fifteenth fewer bytes at a point every 10 s and a fifth fewer at every 60 s. Queries of "
        "such hours take up to a third longer. Rows are read, changed and deleted as before. Needs "
        "tsd.storage.enable_compaction.")
    blocks_age_s: int = setting(
        "tsd.storage.blocks_age", 86400,
        "Age of an hour, from its end, from which rows move to blocks that were not written to them, such as those of "
        "imports. 0: as soon as they are compacted.", "s", low=0)
    blocks_delay_s: int = setting(
        "tsd.storage.blocks_delay", 600,
        "Time after a late point before its hour is folded into blocks again, for more late points.", "s", low=0)
    blocks_least_rows: int = setting(
        "tsd.storage.blocks_least_rows", 16,
        "Fewest series of a metric in an hour that are folded into blocks. Fewer are read faster as they are.",
        "series", low=1)
    compaction_interval_s: int = setting(
        "tsd.storage.compaction.flush_interval", 10,
        "Pause between rounds of compaction.", "s", low=1)
    compaction_threshold: int = setting(
        "tsd.storage.compaction.min_flush_threshold", 100,
        "Rows that must wait for a round to run, and least rows of a round.", "rows", low=0)
    compaction_speed: int = setting(
        "tsd.storage.compaction.flush_speed", 2,
        "Share of the waiting rows that a round takes: at speed N all of them are done N times an hour.", low=1)
    compaction_span_age_s: int = setting(
        "tsd.storage.compaction.span_age", 240,
        "On Cassandra and HBase: a row that was not written for this long loses its old cells by one delete, which may "
        "reach cells that were not read. It must be more than the difference of all writers' clocks (on HBase those of "
        "region servers) and the time of a write. On Cassandra a put that takes half of it is repeated. A daemon waits "
        "this long before it compacts a row.", "s", low=1)

    retention_rules: str = setting(
        "tsd.retention.rules", "",
        "How long points are kept, by metric: sys.debug.*=7d; *=400d. The first pattern that matches the whole name "
        "counts; * stands for any characters, ? for one, [ab] for one of some. Ages are forever, or a number of h, d, "
        "w, n (30 d) or y (365 d). What no pattern matches is kept.")
    retention_rollups: str = setting(
        "tsd.retention.rollups", "",
        "The same for rollups and pre-aggregates. An interval before a pattern restricts it: 1m:*=30d; *=5y.")
    retention_annotations: str = setting(
        "tsd.retention.annotations", "",
        "How long annotations are kept: an age. Empty: those of a series as long as its points, global ones forever.")
    retention_series: str = setting(
        "tsd.retention.series", "",
        "How long `tsd uid prune` keeps a series without rows in the series index and the meta table, from its last "
        "entry there: an age. Names of kept series are kept. Empty: as long as names (--older-than).")

    rollups_enable: bool = setting(
        "tsd.rollups.enable", False,
        "Accept and query rollups and pre-aggregates. Implied by tsd.rollups.build.")
    rollups_config: str = setting(
        "tsd.rollups.config", "",
        'JSON, or the path of a .json file: {"aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3}, '
        '"intervals": [{"interval": "1m", "table": "tsdb", "preAggregationTable": "tsdb-agg", "rowSpan": "1h", '
        '"defaultInterval": true}, {"interval": "1h", "table": "tsdb-1h", "preAggregationTable": "tsdb-agg-1h", '
        '"rowSpan": "1d"}]}. Never change an id once there is data. Empty: these, and 1d in tsdb-1d with a rowSpan of '
        '1n; all names begin with that of the data table.')
    rollups_build: bool = setting(
        "tsd.rollups.build", False,
        "Write the rollups of tsd.rollups.config, 1h and 1d by default: of hours and days that are over, of the past, "
        "and again where late points came. Queries then take rollups as far as they are complete, and points for the "
        "rest. Switch it on in one of the daemons that share tables.")
    rollups_tag_key: str = setting(
        "tsd.rollups.agg_tag_key", "_aggregate",
        "Tag name that holds the aggregator of a pre-aggregate.")
    rollups_tag_raw: bool = setting("tsd.rollups.tag_raw", False, "Add that tag to rollups of single series, too.")
    rollups_raw_value: str = setting(
        "tsd.rollups.raw_agg_tag_value", "RAW",
        "Value of that tag in rollups of single series.")
    rollups_block_derived: bool = setting(
        "tsd.rollups.block_derived", True,
        "Reject rollups and pre-aggregates by avg and dev: averages of averages are wrong.")
    histograms_config: str = setting(
        "tsd.core.histograms.config", "",
        'Id of the histogram codec: {"net.opentsdb.core.SimpleHistogramDecoder": 42}, or the path of a .json file. '
        'Empty: no histograms.')

    track_series: bool = setting(
        "tsd.core.meta.enable_tsuid_tracking", False,
        "Enter each series into the meta table, once when it is new and once in each hour with points. OpenTSDB "
        "needs this for lookup and query/last; this daemon does not.")
    describe_series: bool = setting(
        "tsd.core.meta.enable_realtime_ts", False,
        "With tracking, write metadata (TSMeta) of new series.")
    describe_names: bool = setting(
        "tsd.core.meta.enable_realtime_uid", False,
        "Write metadata (UIDMeta) of new names.")
    grow_trees: bool = setting(
        "tsd.core.tree.enable_processing", False,
        "With tracking and TSMeta, add new series to the enabled trees.")

    corrected: bool = setting(
        "tsd.query.corrected", False,
        "true: answers without OpenTSDB's harmful errors (docs/corrected.md), unless a request has "
        "corrected=false. false: OpenTSDB's answers, unless a request has corrected=true.")
    allow_delete: bool = setting(
        "tsd.http.query.allow_delete", False,
        "Allow DELETE on /api/query, and `delete` in its body, which delete the hours that they read. (OpenTSDB "
        "always allows the latter.)")
    query_timeout_ms: int = setting(
        "tsd.query.timeout", 0,
        "Longest time of a query. A longer one ends with OpenTSDB's error. 0: unlimited.", "ms", low=0)
    query_duplicates: bool = setting(
        "tsd.query.allow_simultaneous_duplicates", True,
        "false: reject a query that its client is already running.")
    query_bytes: int = setting(
        "tsd.query.limits.bytes.default", 0,
        "Bytes that a sub query may read from the store before it ends with OpenTSDB's error. 0: unlimited.",
        "bytes", low=0)
    query_points: int = setting(
        "tsd.query.limits.data_points.default", 0,
        "Data points that a sub query may read. 0: unlimited.", "points", low=0)
    query_bytes_override: bool = setting(
        "tsd.query.limits.bytes.allow_override", False,
        "Requests may use overrideByteLimit.")
    query_points_override: bool = setting(
        "tsd.query.limits.data_points.allow_override", False,
        "Requests may use overrideDataPointLimit.")
    query_overrides: str = setting(
        "tsd.query.limits.overrides.config", "",
        "JSON file with limits by metric: a list of objects with metric (a regular expression), byteLimit and "
        "dataPointsLimit. It is read at the start.")
    query_memory: int = setting(
        "tsd.query.memory_limit", 512 << 20,
        "Bytes of points that all queries hold until their responses are sent. A query that needs more ends with an"
        " error.", "bytes", low=16 << 20)
    max_queries: int = setting(
        "tsd.query.max_concurrent", 16,
        "Queries that run at the same time; further ones wait.", low=1)
    cache_memory: int = setting(
        "tsd.query.cache_memory", 64 << 20,
        "Size of the result cache: downsampled values of past hours, kept until a point is written to the hour. On "
        "HBase each query checks for such writes. 0: no cache.", "bytes", low=0)
    series_index: bool | None = setting(
        "tsd.query.series_index", None,
        "Keep an index of series by tags, so that a query for few of many series reads no others. Unset: true on "
        "the embedded store and on Cassandra, false on HBase and Bigtable, where the index would miss what an "
        "OpenTSDB writes into the same tables.", example="true")
    series_table: str = setting("tsd.query.series_table", "tsdb-series", "Table of that index.")
    expansion_limit: int = setting(
        "tsd.query.filter.expansion_limit", 4096,
        "Values of a literal filter that are resolved to UIDs before the scan. If a filter has more, each value "
        "read is compared instead.", low=0)
    skip_unresolved_tagvs: bool = setting(
        "tsd.query.skip_unresolved_tagvs", False,
        "Ignore unknown values in literal filters. false: they are an error.")
    fuzzy_filter: bool = setting(
        "tsd.query.enable_fuzzy_filter", True,
        "false: explicit tags without the side effects of OpenTSDB's fuzzy filter.")

    journal_path: str = setting(
        "tsd.journal.path", "",
        "Folder of the journal, e.g. on a separate disk. Empty: journal/ in the state folder.")
    journal_sync_ms: int = setting(
        "tsd.journal.sync_interval", 100,
        "Longest time from the arrival of a line to its fsync while a client waits for it (sync, HTTP). Shorter means "
        "more fsyncs, not more bytes.",
        "ms", low=1)
    journal_gather_ms: int = setting(
        "tsd.journal.gather_interval", 5000,
        "The same while no client waits: lines of this time are lost if the daemon or its machine fails before they "
        "are acknowledged. Connections that only send lines are read together after nine tenths of it, at most 4.5 s, "
        "while lines keep coming. Shorter means more CPU time. 0: as if a client waited.",
        "ms", low=0)
    journal_max_bytes: int = setting(
        "tsd.journal.max_bytes", 8 << 30,
        "Size of the journal, which holds points that the store has not stored: about 4 bytes each, or "
        "their lines when they come fast. When it is full, the daemon stops reading from clients; no line is dropped.",
        "bytes", low=1 << 20)

    memory_limit: int = setting(
        "tsd.ingest.memory_limit", 512 << 20,
        "Memory of points that are not written yet, about 21 bytes each; further points are kept in the journal "
        "only. Active series need 300 to 600 bytes each in addition.", "bytes", low=16 << 20)
    series_ttl_s: int = setting(
        "tsd.ingest.series_ttl", 7200,
        "Time without points after which a series is dropped from memory. It is looked up again when it returns.",
        "s", low=60)

    enable_api: bool = setting("tsd.core.enable_api", True, "false: /api/… is answered with 404.")
    enable_ui: bool = setting(
        "tsd.core.enable_ui", True,
        "false: the paths outside the API are answered with 404: /, /s, /q, /logs, /stats, /suggest, /version, "
        "/aggregators.")
    enable_chunked: bool = setting(
        "tsd.http.request.enable_chunked", True,
        "Accept bodies of more than 8192 bytes, and chunked ones. (OpenTSDB's default is false.)")
    max_chunk: int = setting(
        "tsd.http.request.max_chunk", 32 << 20,
        "Largest body of a request, uncompressed; a larger one is answered with 413. (OpenTSDB's default is 4096.)",
        "bytes", low=1)
    http_memory: int = setting(
        "tsd.http.request.memory", 256 << 20,
        "Memory for the bodies of all requests; one client may use a quarter of it. Further requests wait.",
        "bytes", low=1 << 20)
    http_timeout_s: int = setting(
        "tsd.http.request.timeout", 60,
        "Timeout for receiving a request, and for sending 64 KiB of a response. Idle connections are subject to "
        "tsd.core.socket.timeout instead.", "s", low=1)
    cors_domains: str = setting(
        "tsd.http.request.cors_domains", "",
        "Origins whose pages may send requests, separated by commas, or * alone.")
    cors_headers: str = setting(
        "tsd.http.request.cors_headers",
        "Authorization, Content-Type, Accept, Origin, User-Agent, DNT, Cache-Control, X-Mx-ReqToken, Keep-"
        "Alive, X-Requested-With, If-Modified-Since",
        "Headers that those pages may send.")
    header_tag: str = setting(
        "tsd.http.header_tag", "",
        "Header of /api/put with a tag, e.g. dc=fra, for all points of the request that lack that tag. Empty: none."
        " (OpenTSDB reads it and does not apply it.)")
    staticroot: str = setting(
        "tsd.http.staticroot", "",
        "Folder with the files of /s/… and /favicon.ico, e.g. OpenTSDB's own. Empty: none.")
    show_stack_trace: bool = setting(
        "tsd.http.show_stack_trace", False,
        "Add a stack trace to error responses, for development. (OpenTSDB's default is true.)")

    canary: bool | None = setting(
        "tsd.canary.enable", None,
        "Write a point of the series tsd.canary{host=…,daemon=…} every 10 s and read it back. The time it takes is "
        "in `stats`. Unset: true if systemd's watchdog is active (WatchdogSec=), which checks it.", example="false")
    log_level: str = setting(
        "tsd.log.level", "info",
        "debug, info, warning or error. SIGHUP applies a changed value, as it does for tsd.core.drain_timeout, "
        "tsd.journal.max_bytes and the limits.")
    log_format: str = setting(
        "tsd.log.format", "auto",
        "console, json, journald (with priorities, without times), or auto: journald under systemd, otherwise "
        "console.")
    stats_canonical: bool = setting("tsd.stats.canonical", False, "Lines of `stats` have fqdn= instead of host=.")
    stats_with_port: bool = setting("tsd.core.stats_with_port", False, "Lines of `stats` have port=.")

    # fmt: on

    @property
    def has_rollups(self) -> bool:
        """Return whether rollups are accepted and queried: also if the daemon only builds them."""
        return self.rollups_enable or self.rollups_build

    @property
    def indexes_series(self) -> bool:
        """Return whether series are indexed, with the default resolved."""
        by_default = self.backend in (Backend.EMBEDDED, Backend.CASSANDRA)
        return by_default if self.series_index is None else self.series_index

    @property
    def write_interval_ms(self) -> int:
        """Return `tsd.storage.flush_interval`, with the default resolved: longer where points are held for it."""
        shared = self.backend is not Backend.EMBEDDED and self.has_opentsdb_tables and not self.entity
        held = shared and self.hold_open_hours and self.join_points
        return self.flush_interval_ms or (30_000 if held else 10_000)

    @property
    def entity_period_s(self) -> int:
        """Return how much time a row of an entity has, 0: all, with the default resolved."""
        text = self.entity_period.strip() or ("1d" if self.backend is Backend.BIGTABLE else NO_PERIOD)
        return 0 if text == NO_PERIOD else parse_age(text) or 0

    @property
    def creates_metrics(self) -> bool:
        """Return whether an unknown metric gets a UID, with the default resolved."""
        if self.auto_create_metrics is None:
            return self.backend is Backend.EMBEDDED or not self.has_opentsdb_tables
        return self.auto_create_metrics

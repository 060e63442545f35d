"""Every setting there is: its key, type, default, unit and meaning. conf/tsd.conf shows them all; a test compares.

Keys that OpenTSDB has keep their name and their meaning. What OpenTSDB knows and this daemon has no use for stands in
`tsd.opentsdb_keys`, so that an existing file loads.
"""

from dataclasses import dataclass
from enum import Enum

from tsd.access_settings import AccessSettings
from tsd.limit_settings import LimitSettings
from tsd.setting import setting as _key


class Backend(Enum):
    """Where rows are kept."""

    EMBEDDED = "embedded"
    HBASE = "hbase"


class Mode(Enum):
    """What clients may do."""

    READ_WRITE = "rw"
    READ_ONLY = "ro"
    WRITE_ONLY = "wo"


@dataclass(frozen=True)
class Config(AccessSettings, LimitSettings):
    """The settings of one daemon or command. `None` stands for a default that depends on other settings."""

    port: int = _key("tsd.network.port", 4242, "TCP port of the telnet and HTTP protocols", low=0, high=65535)
    bind: str = _key(
        "tsd.network.bind", "127.0.0.1", "address to listen on; 0.0.0.0 or :: for all, once access is safe"
    )
    backlog: int = _key("tsd.network.backlog", 1024, "connections the kernel may hold before they are accepted", low=1)
    reuse_port: bool = _key(
        "tsd.network.reuse_port", False, "several daemons may listen on the port (SO_REUSEPORT): the kernel shares "
        "connections out. For daemons of one user, on HBase, each with a state folder of its own"
    )  # fmt: skip
    tcp_no_delay: bool = _key("tsd.network.tcp_no_delay", True, "send replies at once (TCP_NODELAY)")
    keep_alive: bool = _key("tsd.network.keep_alive", True, "let the kernel find dead peers (SO_KEEPALIVE)")
    connections_limit: int = _key(
        "tsd.core.connections.limit", 0, "open connections; one more is closed at once and counted. 0: as many as the "
        "process may open files, less a reserve", low=0,
    )  # fmt: skip
    socket_timeout_s: int = _key(
        "tsd.core.socket.timeout", 0, "close a connection that neither sent nor read this long. 0: never", "s", low=0
    )
    mode: Mode = _key("tsd.mode", Mode.READ_WRITE, "rw, ro (no put) or wo")
    no_diediedie: bool = _key("tsd.no_diediedie", True, "false: the telnet command diediedie ends the daemon")
    drain_ms: int = _key(
        "tsd.core.drain_timeout", 60000, "on SIGTERM, how long to go on writing what waits; the rest stays in the "
        "journal and is written at the next start", "ms", low=0,
    )  # fmt: skip

    auto_create_metrics: bool | None = _key(
        "tsd.core.auto_create_metrics", None, "unknown metric names get a UID. Unset: true on the embedded store, "
        "false (as in OpenTSDB) on HBase"
    )  # fmt: skip
    auto_create_tagks: bool = _key("tsd.core.auto_create_tagks", True, "unknown tag names get a UID")
    auto_create_tagvs: bool = _key("tsd.core.auto_create_tagvs", True, "unknown tag values get a UID")
    allow_specialchars: str = _key(
        "tsd.core.tag.allow_specialchars", "", "characters allowed in names beside a-z A-Z 0-9 - _ . / and letters"
    )
    max_tags: int = _key("tsd.storage.max_tags", 8, "most tags of a data point", low=1)
    random_metrics: bool = _key("tsd.core.uid.random_metrics", False, "random instead of counted metric UIDs")
    width_metric: int = _key(
        "tsd.storage.uid.width.metric", 3, "bytes of a metric UID; never change it once there is data", "bytes", 1, 8
    )
    width_tagk: int = _key("tsd.storage.uid.width.tagk", 3, "bytes of a tag name's UID; likewise", "bytes", 1, 8)
    width_tagv: int = _key("tsd.storage.uid.width.tagv", 3, "bytes of a tag value's UID; likewise", "bytes", 1, 8)
    name_cache: int = _key(
        "tsd.uid.lru.name.size", 1_000_000, "UIDs by name kept in memory, of each kind", "names", low=1000
    )
    id_cache: int = _key(
        "tsd.uid.lru.id.size", 1_000_000, "names by UID kept in memory, of each kind", "UIDs", low=1000
    )
    uid_cache_ttl_s: int = _key(
        "tsd.uid.cache_ttl", 600, "names kept in memory are looked up again within this time, to notice renames and "
        "deletions by others", "s", low=1,
    )  # fmt: skip

    backend: Backend = _key("tsd.storage.backend", Backend.EMBEDDED, "embedded (RocksDB in the state folder) or hbase")
    path: str = _key(
        "tsd.storage.path", "var", "state folder: journal, embedded store, control socket. One daemon, one folder"
    )
    cache_bytes: int = _key(
        "tsd.storage.cache", 256 << 20, "memory for what was read, on the embedded store", "bytes", low=1 << 20
    )
    thrift: str = _key(
        "tsd.storage.hbase.thrift", "127.0.0.1:9090", "HBase's Thrift gateways, host:port with commas between"
    )
    thrift_connections: int = _key(
        "tsd.storage.hbase.thrift.connections", 8, "connections to the gateways, in all", low=1, high=256
    )
    thrift_timeout_ms: int = _key(
        "tsd.storage.hbase.thrift.timeout", 15000, "how long a gateway may take to answer one call", "ms", low=100
    )
    thrift_transport: str = _key("tsd.storage.hbase.thrift.transport", "buffered", "buffered or framed, as the gateway")
    thrift_protocol: str = _key("tsd.storage.hbase.thrift.protocol", "binary", "binary or compact, as the gateway")
    data_table: str = _key("tsd.storage.hbase.data_table", "tsdb", "table of the points, on both engines")
    uid_table: str = _key("tsd.storage.hbase.uid_table", "tsdb-uid", "table of names and UIDs, on both engines")
    tree_table: str = _key("tsd.storage.hbase.tree_table", "tsdb-tree", "table of trees, on both engines")
    meta_table: str = _key("tsd.storage.hbase.meta_table", "tsdb-meta", "table of series' metadata, on both engines")
    salt_width: int = _key("tsd.storage.salt.width", 0, "bytes of salt before a row key. 0: none", "bytes", 0, 8)
    salt_buckets: int = _key("tsd.storage.salt.buckets", 20, "number of salts", low=1)
    flush_interval_ms: int = _key(
        "tsd.storage.flush_interval", 10000, "the window: how long points wait in their open row so as to be written "
        "as one cell. They are safe in the journal meanwhile", "ms", low=10,
    )  # fmt: skip
    join_points: bool = _key(
        "tsd.storage.join_points", True, "true: one cell a row and window; false: one cell a point, as OpenTSDB writes"
    )

    enable_compaction: bool = _key(
        "tsd.storage.enable_compaction", True, "rows that got several cells become one cell once their hour is over"
    )
    compaction_interval_s: int = _key(
        "tsd.storage.compaction.flush_interval", 10, "pause between rounds of compaction", "s", low=1
    )
    compaction_threshold: int = _key(
        "tsd.storage.compaction.min_flush_threshold", 100, "with no more rows waiting nothing is done; else at "
        "least so many a round", "rows", low=0,
    )  # fmt: skip
    compaction_ceiling: int = _key(
        "tsd.storage.compaction.max_concurrent_flushes", 10000, "most rows of a round", "rows", low=1
    )
    compaction_speed: int = _key(
        "tsd.storage.compaction.flush_speed", 2, "a round's share of the rows that wait: as many as would be done so "
        "many times an hour", low=1,
    )  # fmt: skip
    compaction_queue: int = _key(
        "tsd.storage.compaction.queue_limit", 500_000, "rows that are watched or wait; what is more is left to "
        "tsd compact", "rows", low=1000,
    )  # fmt: skip
    track_series: bool = _key(
        "tsd.core.meta.enable_tsuid_tracking", False, "every series written is entered into the meta table, where "
        "OpenTSDB's lookup and query/last find it. (Ours need it not.)"
    )  # fmt: skip
    describe_series: bool = _key(
        "tsd.core.meta.enable_realtime_ts", False, "with tracking, new series get metadata (TSMeta)"
    )
    describe_names: bool = _key("tsd.core.meta.enable_realtime_uid", False, "new names get metadata (UIDMeta)")
    grow_trees: bool = _key(
        "tsd.core.tree.enable_processing", False, "with tracking and TSMeta, new series are put into the enabled trees"
    )
    lookup_look_back_h: int = _key(
        "tsd.search.look_back", 6, "how far back /api/search/lookup looks for series in rows, where no index and no "
        "meta table tells which there are", "h", 0, 8784,
    )  # fmt: skip
    last_look_back_h: int = _key(
        "tsd.query.last.look_back", 2, "how far back /api/query/last looks in the store for series that this daemon "
        "has not written itself, unless a request says otherwise", "h", 0, 8784,
    )  # fmt: skip
    allow_delete: bool = _key(
        "tsd.http.query.allow_delete", False, "DELETE on /api/query, and delete in its body, remove the rows they read"
    )
    corrected: bool = _key(
        "tsd.query.corrected", False, "true: answers without OpenTSDB's harmful accidents (README, Differences), "
        "unless a request says corrected=false. A request may also say corrected=true"
    )  # fmt: skip
    query_timeout_ms: int = _key(
        "tsd.query.timeout", 0, "a query whose answer has not begun by then ends with an error. 0: never", "ms", low=0
    )
    query_duplicates: bool = _key(
        "tsd.query.allow_simultaneous_duplicates", True, "false: a client that waits for an answer cannot ask the same "
        "again"
    )  # fmt: skip
    query_bytes: int = _key(
        "tsd.query.limits.bytes.default", 0, "most bytes that a sub query may fetch from the store. 0: any", "bytes",
        low=0,
    )  # fmt: skip
    query_points: int = _key("tsd.query.limits.data_points.default", 0, "most data points, likewise", "points", low=0)
    query_bytes_override: bool = _key(
        "tsd.query.limits.bytes.allow_override", False, "a request may say overrideByteLimit"
    )
    query_points_override: bool = _key(
        "tsd.query.limits.data_points.allow_override", False, "a request may say overrideDataPointLimit"
    )
    query_overrides: str = _key(
        "tsd.query.limits.overrides.config", "", "JSON file of other limits by metric: a list of objects with metric "
        "(a regular expression), byteLimit, dataPointsLimit. Read at the start"
    )  # fmt: skip
    query_memory: int = _key(
        "tsd.query.memory_limit", 512 << 20, "most bytes of points that all queries hold together; one that needs more "
        "ends with an error", "bytes", low=16 << 20,
    )  # fmt: skip
    queries_at_once: int = _key("tsd.query.at_once", 16, "queries that run side by side; others wait", low=1)
    query_scans: int = _key("tsd.query.scans", 4, "on HBase, scans side by side for one query", low=1, high=64)
    remember_memory: int = _key(
        "tsd.query.remember_memory", 64 << 20, "what hours that are over come to, downsampled, is remembered for later "
        "queries as long as nothing was written to them; most bytes it takes. 0: nothing is", "bytes", low=0,
    )  # fmt: skip
    series_index: bool | None = _key(
        "tsd.query.series_index", None, "series are entered into an index by their tags, so that a query for a few of "
        "many reads no others. Unset: true on the embedded store, false on HBase, where it would miss what an OpenTSDB "
        "writes into the same tables"
    )  # fmt: skip
    series_table: str = _key("tsd.query.series_table", "tsdb-series", "table of that index")
    expansion_limit: int = _key(
        "tsd.query.filter.expansion_limit", 4096, "most values of a literal filter that are looked up before the read; "
        "of more, each value read is compared", low=0,
    )  # fmt: skip
    skip_unresolved_tagvs: bool = _key(
        "tsd.query.skip_unresolved_tagvs", False, "true: unknown values in literal filters are passed over; false: "
        "they are an error"
    )  # fmt: skip
    fuzzy_filter: bool = _key(
        "tsd.query.enable_fuzzy_filter",
        True,
        "false: explicit tags without the side effects of OpenTSDB's fuzzy filter",
    )
    fix_duplicates: bool = _key(
        "tsd.storage.fix_duplicates", True, "of differing values of one time a compaction keeps the newest; false: it "
        "leaves such rows alone"
    )  # fmt: skip

    rollups_enable: bool = _key("tsd.rollups.enable", False, "rollups and pre-aggregates are written and read")
    rollups_config: str = _key(
        "tsd.rollups.config", "", "their aggregators' ids and their intervals with tables: JSON, or the path of a "
        ".json file"
    )  # fmt: skip
    rollups_tag_key: str = _key("tsd.rollups.agg_tag_key", "_aggregate", "tag name that pre-aggregates carry")
    rollups_tag_raw: bool = _key("tsd.rollups.tag_raw", False, "rollups of single series carry it, too")
    rollups_raw_value: str = _key("tsd.rollups.raw_agg_tag_value", "RAW", "with this value")
    rollups_block_derived: bool = _key(
        "tsd.rollups.block_derived", True, "refuse rollups and pre-aggregates by avg, dev"
    )
    histograms_config: str = _key(
        "tsd.core.histograms.config", "", "the id of the histograms' codec: "
        '{"net.opentsdb.core.SimpleHistogramDecoder": 42}, or the path of a .json file. Empty: no histograms'
    )  # fmt: skip

    journal_path: str = _key(
        "tsd.journal.path", "", "folder of the journal, e.g. on a disk of its own. Empty: journal/ in the state folder"
    )
    journal_sync_ms: int = _key(
        "tsd.journal.sync_interval", 100, "a line is on disk (fsync) no later than this after it came", "ms", low=1
    )
    journal_max_bytes: int = _key(
        "tsd.journal.max_bytes", 8 << 30, "most bytes of points that wait for the store; when it is full, the daemon "
        "stops reading from its clients", "bytes", low=1 << 20,
    )  # fmt: skip
    memory_limit: int = _key(
        "tsd.ingest.memory_limit", 512 << 20, "most bytes of points held in memory before they are written", "bytes",
        low=16 << 20,
    )  # fmt: skip
    max_line: int = _key(
        "tsd.ingest.max_line", 16384, "longest line; a longer one is refused and skipped", "bytes", 1024, 32000
    )
    series_idle_s: int = _key(
        "tsd.ingest.series_idle", 7200, "a series that sent nothing for so long is forgotten, and looked up again when "
        "it returns", "s", low=60,
    )  # fmt: skip
    reply_buffer: int = _key(
        "tsd.ingest.reply_buffer", 1 << 20, "replies kept for a client that does not read; past it, error lines are "
        "summed up in one", "bytes", low=4096,
    )  # fmt: skip
    reply_memory: int = _key(
        "tsd.ingest.reply_memory", 64 << 20, "likewise, for all clients together", "bytes", low=1 << 20
    )

    enable_api: bool = _key("tsd.core.enable_api", True, "false: there is no HTTP API, /api/… is not found")
    enable_ui: bool = _key(
        "tsd.core.enable_ui", True, "false: what is outside the API is not found: /, /s, /q, /logs, /stats, /suggest, "
        "/version, /aggregators"
    )  # fmt: skip
    enable_chunked: bool = _key(
        "tsd.http.request.enable_chunked", True, "take bodies of more than 8192 bytes, and of unknown length"
    )
    max_chunk: int = _key(
        "tsd.http.request.max_chunk", 32 << 20, "largest body of a request, uncompressed; a larger one is answered "
        "with 413", "bytes", low=1,
    )  # fmt: skip
    http_memory: int = _key(
        "tsd.http.request.memory", 256 << 20, "bodies of all requests that are being received or worked on, together; "
        "one client may have a quarter of it. Others wait", "bytes", low=1 << 20,
    )  # fmt: skip
    http_timeout_s: int = _key(
        "tsd.http.request.timeout", 60, "how long a request may take to come, and a client to take what it is sent "
        "(64 KiB of either); silence between requests is not bounded by this", "s", low=1,
    )  # fmt: skip
    cors_domains: str = _key(
        "tsd.http.request.cors_domains", "", "origins whose pages may ask, with commas between, or * alone for all"
    )
    cors_headers: str = _key(
        "tsd.http.request.cors_headers", "Authorization, Content-Type, Accept, Origin, User-Agent, DNT, Cache-Control, "
        "X-Mx-ReqToken, Keep-Alive, X-Requested-With, If-Modified-Since", "headers that those pages may send"
    )  # fmt: skip
    header_tag: str = _key(
        "tsd.http.header_tag", "", "header of /api/put that holds a tag, k=v, for all points that have none of that "
        "name. Empty: none"
    )  # fmt: skip
    staticroot: str = _key("tsd.http.staticroot", "", "folder of the files of /s/ and of favicon.ico. Empty: none")
    show_stack_trace: bool = _key(
        "tsd.http.show_stack_trace", False, "errors carry a trace, with names of files: for development"
    )

    canary: bool | None = _key(
        "tsd.canary.enable", None, "a point of the series tsd.canary{host=…,daemon=…} is written and read back every "
        "10 s. Unset: where systemd's watchdog asks for it (WatchdogSec=)"
    )  # fmt: skip
    log_level: str = _key("tsd.log.level", "info", "debug, info, warning or error")
    log_format: str = _key("tsd.log.format", "auto", "console, json, journald, or auto: what the output is")
    stats_canonical: bool = _key("tsd.stats.canonical", False, "stats carry fqdn= instead of host=")
    stats_with_port: bool = _key("tsd.core.stats_with_port", False, "stats carry port=")

    @property
    def indexes_series(self) -> bool:
        """Whether series are indexed, the default worked out."""
        return self.backend is Backend.EMBEDDED if self.series_index is None else self.series_index

    @property
    def creates_metrics(self) -> bool:
        """Whether an unknown metric gets a UID, the default worked out."""
        return self.backend is Backend.EMBEDDED if self.auto_create_metrics is None else self.auto_create_metrics

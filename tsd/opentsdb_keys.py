"""Keys of OpenTSDB that no field of Config stands for: those without meaning here, and switches that are not done."""

# Known to OpenTSDB, without meaning here. A key ending with a dot stands for all that start so.
OPENTSDB_ONLY = tuple(
    """
    hbase. tsd.network.async_io tsd.network.worker_threads tsd.network.reuse_address
    tsd.core.plugin_path tsd.core.timezone tsd.core.response.async tsd.core.response.worker.num
    tsd.rpc.telnet.return_errors tsd.core.bulk.allow_out_of_order_timestamps tsd.core.storage_exception_handler.
    tsd.timeseriesfilter. tsd.rtpublisher. tsd.core.preload_uid_cache tsd.core.preload_uid_cache.max_entries
    tsd.uid.use_mode tsd.uid.lru.enable tsd.uidfilter. tsd.core.meta. tsd.search.
    tsd.storage.hbase.zk_quorum tsd.storage.hbase.zk_basedir tsd.storage.hbase.prefetch_meta
    tsd.storage.hbase.scanner.maxNumRows tsd.core.flushinterval tsd.storage.repair_appends tsd.storage.use_max_value
    tsd.storage.get_date_tiered_compaction_start tsd.rollups.agg_tag tsd.http. tsd.rpc.plugins
    tsd.core.authentication.plugin tsd.gnuplot.options.allowlist tsd.query. tsd.startup. tsd.core.repair_appends
    tsd.core.config tsd.core.config.include tsd.logback. tsd.process. tsd.ui.noexport tsd.addins.
    """.split()
)

# OpenTSDB's switches that change who may connect, which points are stored, or what of them: to ignore them would be a
# lie, so they must be off.
MUST_BE_OFF = {
    "tsd.storage.enable_appends": "this version does not write the append column; its cells join points as well, and "
    "OpenTSDB reads both in one row",
    "tsd.storage.use_otsdb_timestamp": "this version lets the store stamp its cells, and a query that is bounded by "
    "cell time would miss them",
    "tsd.timeseriesfilter.enable": "this version has no plugins, and would store the points that the filter is to stop",
    "tsd.uidfilter.enable": "this version has no plugins, and would give UIDs to names that the filter is to stop",
}

# OpenTSDB's switches for what happens beside the points, and what is missing where one is on: said aloud at the start.
# Files that have them are common, and their points are stored all the same.
NOT_DONE = {
    "tsd.rollups.split_query.enable": "a query reads rollups or points, not both",
    "tsd.core.meta.cache.enable": "no series is handed to the plugin",
    "tsd.core.meta.enable_tsuid_incrementing": "points are not counted in the meta table",
    "tsd.core.storage_exception_handler.enable": "no point is handed to the plugin: what the store does not take waits "
    "in the journal",
    "tsd.rtpublisher.enable": "no point is handed to the plugin",
    "tsd.search.enable": "nothing is handed to the plugin",
    "tsd.startup.enable": "the plugin is not run",
}

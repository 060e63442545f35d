"""Cassandra 5.0.2, one node on loopback, which tsd uses as a storage engine.

Its folder has `conf/`, `data/`, `commitlog/` and other folders of Cassandra (persistent), `log/`, `run/` and `tmp/`.
With `--password` it asks for user cassandra, password cassandra. With `--keystore` clients may use TLS. With
`--durable` a write is in its log before it is acknowledged: a kill loses nothing.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scripts.peers.java import LOGBACK, fetch, find_java
from scripts.peers.ports import HOST, cql_answers, pick
from scripts.peers.process import (
    PeerError,
    await_ready,
    kill_all,
    killed_on_error,
    launch,
    locked,
    pid_of,
    save,
    saved,
    send,
    shut_down,
)

NAME, TITLE = "cassandra", "Cassandra"
MAIN = "org.apache.cassandra.service.CassandraDaemon"
PORT, STORAGE_PORT = 9042, 7000
STOP_S = 60  # a stop flushes memory to files
START_S = 180

# Packages that Cassandra accesses, and that Java 17 closes. From its own jvm17-server.options.
OPENS = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang", "java.lang.module", "java.lang.reflect", "java.io", "java.math", "java.net", "java.nio",
            "java.nio.charset", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
            "jdk.internal.loader", "jdk.internal.math", "jdk.internal.module", "jdk.internal.ref",
            "jdk.internal.reflect", "jdk.internal.util.jar", "sun.nio.ch",
        )
    ),
    *(
        f"--add-exports=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang.ref", "java.util.zip", "jdk.internal.misc", "jdk.internal.ref", "jdk.internal.util",
            "sun.nio.ch",
        )
    ),
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED",
    "--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.transport.tcp=ALL-UNNAMED",
    "--add-exports=java.sql/java.sql=ALL-UNNAMED",
    "--add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED",
    "--add-exports=jdk.naming.dns/com.sun.jndi.dns=java.naming",
]  # fmt: skip
QUICK = ["-XX:TieredStopAtLevel=1"]

YAML = """\
cluster_name: tsd
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: {host}
rpc_address: {host}
start_native_transport: true
native_transport_port: {port}
storage_port: {storage_port}
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{host}:{storage_port}"}}]
data_file_directories: ["{home}/data"]
commitlog_directory: "{home}/commitlog"
hints_directory: "{home}/hints"
saved_caches_directory: "{home}/saved_caches"
cdc_raw_directory: "{home}/cdc_raw"
{sync}
commitlog_segment_size: 16MiB
disk_failure_policy: die
auto_snapshot: false
memtable_heap_space: 192MiB
memtable_offheap_space: 192MiB
memtable_allocation_type: offheap_objects
file_cache_size: 64MiB
networking_cache_size: 32MiB
concurrent_reads: 8
concurrent_writes: 16
concurrent_compactors: 1
read_request_timeout: {patience}
range_request_timeout: {patience}
write_request_timeout: {patience}
cas_contention_timeout: {patience}
request_timeout: {patience}
authenticator: {authenticator}
"""
PATIENCE = "10s"  # a busy machine takes longer than Cassandra's 2 s; less than tsd.storage.cassandra.timeout
PERIODIC_SYNC = "commitlog_sync: periodic\ncommitlog_sync_period: 1000ms"
GROUP_SYNC = "commitlog_sync: group\ncommitlog_sync_group_window: 10ms"
TLS = """\
client_encryption_options:
  enabled: true
  optional: true
  keystore: "{keystore}"
  keystore_password: cassandra
  store_type: PKCS12
"""


@dataclass(frozen=True)
class Options:
    """Options of a start. Port None is the default port, 0 any free one; `heap` is in the format of -Xmx."""

    port: int | None = None
    storage_port: int | None = None
    heap: str = "768m"
    password: bool = False
    keystore: Path | None = None  # PKCS 12: certificate and key of the node; clients may use TLS then
    durable: bool = False  # the log is synced before a write is acknowledged
    quick: bool = False
    owner: int | None = None  # stop when this process ends


class Started(NamedTuple):
    """Ports of the last start, saved in `run/cassandra.json`."""

    port: int
    storage_port: int


def start(home: Path, options: Options) -> Started:
    """Start it unless it runs, resume it if it is paused, and return once it answers. Raise PeerError."""
    with locked(home / "run" / "lock"):
        if pid_of(home, NAME):
            return _resumed(home, options)
        started = Started(
            pick(PORT if options.port is None else options.port),
            pick(STORAGE_PORT if options.storage_port is None else options.storage_port),
        )
        _configure(home, started, options)
        command = _command(home, options)
        launch(home, NAME, command, lambda: cql_answers(started.port), within_s=START_S, owner=options.owner)
        return started


def stop(home: Path) -> None:
    """Stop it cleanly: it writes its memory to files."""
    shut_down(home, NAME, TITLE, within_s=STOP_S, loses=". Its next start replays its log")


def kill(home: Path) -> None:
    """Kill it, without waiting: a start in progress fails."""
    kill_all(home)


def pause(home: Path) -> None:
    """Pause it: its connections stay open without answers."""
    send(home, NAME, signal.SIGSTOP)


def resume(home: Path) -> None:
    """Resume it if it is paused."""
    send(home, NAME, signal.SIGCONT)


def status(home: Path) -> list[str]:
    """Return a line if it runs."""
    pid = pid_of(home, NAME)
    return [f"{NAME} runs as process {pid}, CQL on {HOST}:{read(home).port}"] if pid else []


def read(home: Path) -> Started:
    """Return the ports of the last start in `home`. Raise PeerError if there was none."""
    return Started(**saved(home, NAME, TITLE, Started._fields))


def _resumed(home: Path, options: Options) -> Started:
    started = read(home)
    if options.port and options.port != started.port:
        raise PeerError(f"it runs already, with --port {started.port}: stop it first")
    resume(home)
    with killed_on_error(home):
        await_ready(home, [NAME], lambda: cql_answers(started.port), within_s=START_S)
    return started


def _command(home: Path, options: Options) -> list[str | Path]:
    """Return the command of the JVM."""
    flags = [
        "-Xms256m", f"-Xmx{options.heap}", "-XX:+UseSerialGC", "-Xss512k", "-XX:+ExitOnOutOfMemoryError",
        *(QUICK if options.quick else []),
        f"-Djava.io.tmpdir={home / 'tmp'}",
        "-Djava.net.preferIPv4Stack=true",
        "-Djdk.attach.allowAttachSelf=true",
        f"-Dcassandra.config=file://{home / 'conf' / 'cassandra.yaml'}",
        f"-Dcassandra.storagedir={home}",
        f"-Dcassandra.logdir={home / 'log'}",
        f"-Dlogback.configurationFile={home / 'conf' / 'logback.xml'}",
        "-Dcassandra-foreground=yes",
        # A single node waits for no others.
        "-Dcassandra.ring_delay_ms=0",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.superuser_setup_delay_ms=0",
    ]  # fmt: skip
    return [find_java(), *OPENS, *flags, "-cp", f"{home / 'conf'}:{fetch(NAME)}/*", MAIN]


def _configure(home: Path, started: Started, options: Options) -> None:
    for folder in ("conf", "run", "tmp"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    yaml = YAML.format(
        host=HOST,
        home=home,
        patience=PATIENCE,
        sync=GROUP_SYNC if options.durable else PERIODIC_SYNC,
        authenticator="PasswordAuthenticator" if options.password else "AllowAllAuthenticator",
        **started._asdict(),
    )
    if options.keystore is not None:
        yaml += TLS.format(keystore=options.keystore)
    (home / "conf" / "cassandra.yaml").write_text(yaml)
    (home / "conf" / "logback.xml").write_text(LOGBACK)
    save(home, NAME, started._asdict())

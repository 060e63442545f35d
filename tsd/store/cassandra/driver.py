"""cassandra-driver: connections, prepared statements, and its errors as StoreErrors. Only this folder imports it."""

import logging
import queue
import random
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    WriteTimeout,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture
from cassandra.connection import ConnectionException, ProtocolError
from cassandra.metadata import Murmur3Token
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    RetryPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import Host
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    SyntaxException,
    UnavailableErrorMessage,
)
from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement

from tsd.config.certificate_files import client_context, load_certificate
from tsd.errors import NoTable, StoreBusy, StoreDown, StoreError, TsdError
from tsd.store.cassandra.clocks import NodeTime
from tsd.store.cassandra.protocol import EncodedRows, Handler, decoded_rows, raw_rows
from tsd.store.cassandra.session import (
    NO_ROWS,
    BadStatement,
    BatchTooLarge,
    Contact,
    Done,
    Parameters,
    RawDone,
    ReadFailed,
    Rows,
    TooManyTombstones,
)

PROTOCOL = 4  # from Cassandra 2.2 on
RECONNECT_S = 1.0
MOST_TIMES = 5  # nodes whose clocks are read at once
LATE_S = 1.0  # longest wait for another answer, once the first node has answered
READ_TIME = "SELECT toUnixTimestamp(now()) FROM system.local"
BUFFER_BYTES = 64 << 10  # read and written with one system call; the driver's default is 4 KiB
CONDITIONAL, RAW = "conditional", "raw"  # profiles of statements with IF, and of those whose rows stay as sent
_ABSENT = re.compile(r"(unconfigured table|[Kk]eyspace '?\"?\w+'?\"? does not exist|does not exist)")
_TOMBSTONES = re.compile("TOO_MANY_TOMBSTONES", re.IGNORECASE)
_UNVERIFIED = re.compile("certificate verify failed", re.IGNORECASE)


class CheckedConnection(Cluster.connection_class):  # type: ignore[misc]
    """A connection that ends at an answer to no request of its own.

    The driver ignores such an answer and lists its stream ID as free a second time. Two requests then share the ID, and
    one gets the other's answer: a write that never happened would count as stored.
    """

    in_buffer_size = out_buffer_size = BUFFER_BYTES

    def process_msg(self, header: Any, body: bytes) -> None:
        """Handle an answer, in the thread of the driver's event loop."""
        stream = header.stream
        with self.lock:
            is_ours = stream < 0 or stream in self._requests or stream in self.orphaned_request_ids
        if is_ours:
            super().process_msg(header, body)
        elif not (self.is_closed or self.is_defunct):
            self.defunct(ProtocolError(f"got an answer for stream {stream}, which has no request"))


class DriverSession:
    """A session of the driver. See Session."""

    def __init__(self, contact: Contact) -> None:
        """Connect. Raise StoreError."""
        level = ConsistencyLevel.name_to_value[contact.consistency]
        local = contact.consistency.startswith("LOCAL_")
        serial = ConsistencyLevel.LOCAL_SERIAL if local else ConsistencyLevel.SERIAL
        profiles = {
            name: ExecutionProfile(
                load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
                retry_policy=retries,
                consistency_level=level,
                serial_consistency_level=serial,
                request_timeout=contact.timeout_s,
                row_factory=rows,
            )
            for name, retries, rows in (
                (EXEC_PROFILE_DEFAULT, RetryPolicy(), decoded_rows),
                (CONDITIONAL, FallthroughRetryPolicy(), decoded_rows),
                (RAW, RetryPolicy(), raw_rows),
            )
        }
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)  # its errors reach the caller
        try:
            self._cluster = Cluster(
                contact_points=list(contact.hosts),
                port=contact.hosts[0][1],
                connection_class=CheckedConnection,
                protocol_version=PROTOCOL,
                execution_profiles=profiles,
                auth_provider=_credentials(contact),
                ssl_context=_tls(contact),
                connect_timeout=contact.timeout_s,
                control_connection_timeout=contact.timeout_s,
                reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
                idle_heartbeat_interval=10,
                idle_heartbeat_timeout=contact.timeout_s,
                allow_beta_protocol_version=False,
            )
        except (OSError, ValueError, TsdError) as exc:
            raise StoreError(f"Cassandra cannot be reached: {exc}") from exc
        try:
            with _translating():
                self._session = self._cluster.connect()
        except StoreError:
            self._cluster.shutdown()
            raise
        self._timeout_s = contact.timeout_s
        self._session.default_fetch_size = None  # statements have limits of their own
        self._session.client_protocol_handler = Handler

    def prepare(self, cql: str, *, conditional: bool) -> PreparedStatement:
        """See Session."""
        with _translating():
            statement = self._session.prepare(cql)
        statement.is_idempotent = not conditional
        return statement

    def command(self, cql: str, parameters: Parameters = ()) -> Rows:
        """See Session."""
        with _translating():
            return list(self._session.execute(cql, parameters or None))

    def times(self, elapsed_ms: Callable[[], float]) -> list[NodeTime]:
        """See Session. Up to MOST_TIMES nodes are asked, chosen at random."""
        connected = [host for host in self._session.get_pool_state() if host.is_up]
        asked: list[Host | None] = [*random.sample(connected, min(len(connected), MOST_TIMES))]
        answers: queue.SimpleQueue[NodeTime | StoreError] = queue.SimpleQueue()
        for host in asked or [None]:  # None: the driver chooses, and says why it cannot
            self._ask_time(host, elapsed_ms, answers)
        found: list[NodeTime] = []
        error: StoreError = StoreDown("Cassandra: no node tells its time")
        for _ in asked or [None]:
            try:
                answer = answers.get(timeout=LATE_S if found else self._timeout_s + LATE_S)
            except queue.Empty:
                break
            if isinstance(answer, NodeTime):
                found.append(answer)
            else:
                error = answer
        if not found:
            raise error
        return found

    def _ask_time(
        self, host: Host | None, elapsed_ms: Callable[[], float], answers: "queue.SimpleQueue[NodeTime | StoreError]"
    ) -> None:
        """Ask for the time of a node, and put it or an error into `answers`."""
        asked_ms = elapsed_ms()
        try:
            future = self._session.execute_async(READ_TIME, host=host)
        except Exception as exc:
            answers.put(translated(exc))
            return
        future.add_callbacks(
            lambda rows: answers.put(NodeTime(rows[0][0], asked_ms, elapsed_ms())),
            lambda exc: answers.put(translated(exc)),
        )

    def submit(self, statement: PreparedStatement, parameters: Parameters, done: Done) -> None:
        """See Session."""
        profile = EXEC_PROFILE_DEFAULT if statement.is_idempotent else CONDITIONAL
        self._submit(statement, parameters, profile, done)

    def submit_batch(self, statement: PreparedStatement, rows: Sequence[Parameters], done: Done) -> None:
        """See Session."""
        self._submit(_batch(statement, rows), None, EXEC_PROFILE_DEFAULT, done)

    def submit_conditional(self, statement: PreparedStatement, rows: Sequence[Parameters], done: Done) -> None:
        """See Session."""
        self._submit(_batch(statement, rows), None, CONDITIONAL, done)

    def submit_raw(
        self, statement: PreparedStatement, parameters: Parameters, partition: bytes | None, done: RawDone
    ) -> None:
        """See Session."""

        def answered(rows: Any, error: StoreError | None) -> None:
            done(NO_ROWS if error else rows, error)

        if partition is None:
            self._submit(statement, parameters, RAW, answered)
            return
        self._submit(BoundStatement(statement, routing_key=partition).bind(parameters), None, RAW, answered)

    def nodes(self, keyspace: str, keys: Sequence[bytes]) -> list[str] | None:
        """See Session."""
        metadata = self._cluster.metadata
        tokens = metadata.token_map
        if tokens is None or tokens.token_class is not Murmur3Token:
            return None
        if len(metadata.all_hosts()) == 1:
            return [""] * len(keys)
        replicas = [tokens.get_replicas(keyspace, Murmur3Token.from_key(key)) for key in keys]
        return [str(hosts[0].endpoint) if hosts else "" for hosts in replicas]

    def submit_encoded(
        self, statement: PreparedStatement, rows: Sequence[bytes], partition: bytes | None, done: Done
    ) -> None:
        """See Session."""
        batch = BatchStatement(BatchType.UNLOGGED)
        # The driver passes the statements to its message without a look at them, see `Handler`.
        batch._statements_and_parameters = EncodedRows(statement.query_id, len(statement.column_metadata), rows)
        batch.is_idempotent = True
        if partition is not None:
            batch.routing_key, batch.keyspace = partition, statement.keyspace
        self._submit(batch, None, EXEC_PROFILE_DEFAULT, done)

    def _submit(
        self,
        statement: Any,
        parameters: Parameters | None,
        profile: object,
        done: Callable[[Any, StoreError | None], None],
    ) -> None:
        try:
            future: ResponseFuture = self._session.execute_async(statement, parameters, execution_profile=profile)
        except Exception as exc:  # also what the driver raises for values that it cannot encode
            done([], translated(exc))
            return
        future.add_callbacks(lambda rows: done(rows or [], None), lambda exc: done([], translated(exc)))

    def close(self) -> None:
        """See Session."""
        self._cluster.shutdown()


def _batch(statement: PreparedStatement, rows: Sequence[Parameters]) -> BatchStatement:
    """Return an unlogged batch, which may be sent twice if its statement may."""
    batch = BatchStatement(BatchType.UNLOGGED)
    for row in rows:
        batch.add(statement, row)
    batch.is_idempotent = statement.is_idempotent
    return batch


def connect(contact: Contact) -> DriverSession:
    """Connect to a cluster. Raise StoreError."""
    return DriverSession(contact)


@contextmanager
def _translating() -> Iterator[None]:
    """Raise StoreError for whatever the driver raises: its errors have no class in common."""
    try:
        yield
    except Exception as exc:
        raise translated(exc) from None


def translated(error: BaseException) -> StoreError:
    """Return an error of the driver as a StoreError, with its message in one line."""
    said = " ".join(str(error).split())[:500]
    match error:
        case NoHostAvailable():
            return _no_host(error)
        case AuthenticationFailed() | Unauthorized():
            return StoreError(f"Cassandra refuses the user or the password: {said}")
        case InvalidRequest() if _ABSENT.search(said):
            return NoTable(f"{said}: `tsd create-tables` creates keyspace and tables")
        case InvalidRequest() if "Batch too large" in said:
            return BatchTooLarge(f"Cassandra: {said}")
        case OverloadedErrorMessage():
            return StoreBusy(f"Cassandra is overloaded: {said}")
        case Unavailable() | IsBootstrappingErrorMessage():
            return StoreDown(f"Cassandra: too few replicas are up: {said}")
        case ReadTimeout() | WriteTimeout() | OperationTimedOut():
            return StoreDown(f"Cassandra: no answer in time: {said}")
        case ConnectionException() | OSError():
            return StoreDown(f"Cassandra: connection lost: {said}")
        case _ if _TOMBSTONES.search(said):
            return TooManyTombstones(
                f"Cassandra: too many tombstones among the rows (tombstone_failure_threshold): {said}"
            )
        case ReadFailure():
            return ReadFailed(f"Cassandra: {said}")
        case SyntaxException():
            return BadStatement(f"Cassandra: {said}")
        case InvalidRequest() | ErrorMessage() | DriverException():
            return StoreError(f"Cassandra: {said}")
        case _:
            return StoreError(f"Cassandra: {type(error).__name__}: {said}")


def _no_host(error: NoHostAvailable) -> StoreError:
    """Return the errors of all tried nodes as one StoreError."""
    given = error.errors  # by node; the names of the nodes alone if the driver knows no error
    errors = given if isinstance(given, dict) else dict.fromkeys(given, "no answer")
    said = "; ".join(f"{host}: {' '.join(str(cause).split())}" for host, cause in errors.items())[:500]
    causes = list(errors.values())
    if causes and all(isinstance(cause, OverloadedErrorMessage) for cause in causes):
        return StoreBusy(f"Cassandra is overloaded: {said}")
    if causes and all(isinstance(cause, AuthenticationFailed) for cause in causes):
        return StoreError(f"Cassandra refuses the user or the password: {said}")
    if causes and all(_UNVERIFIED.search(str(cause)) for cause in causes):
        return StoreError(f"Cassandra: the nodes' certificates are refused (tsd.storage.cassandra.tls): {said}")
    if any(isinstance(cause, UnavailableErrorMessage | IsBootstrappingErrorMessage) for cause in causes):
        return StoreDown(f"Cassandra: too few replicas are up: {said}")
    return StoreDown(f"Cassandra: no node answers: {said or 'none is connected'}")


def _credentials(contact: Contact) -> PlainTextAuthProvider | None:
    """Return the user and the password. Raise OSError."""
    if not contact.user:
        return None
    password = Path(contact.password_file).read_text("utf-8").rstrip("\r\n") if contact.password_file else ""
    return PlainTextAuthProvider(contact.user, password)


def _tls(contact: Contact) -> ssl.SSLContext | None:
    """Return the TLS settings, None without TLS. Raise TsdError."""
    if not contact.ca_file:
        return None
    context = client_context(contact.ca_file)
    context.check_hostname = contact.checks_names
    if contact.certificate_file:
        load_certificate(context, contact.certificate_file, contact.key_file)
    return context

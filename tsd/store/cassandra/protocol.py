"""Extends cassandra-driver's protocol handler: the caller decides whether rows are decoded, and may encode batches.

The driver offers `Session.client_protocol_handler` for this. With it and a row factory of an execution profile the
caller of a statement chooses what its rows become.
"""

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassandra.protocol import BatchMessage, ProtocolHandler, ResultMessage

from tsd.store.cassandra.session import Rows
from tsd.store.cassandra.wire import RawRows

BATCH_HEAD = 3  # bytes of a batch before its statements: kind, and number of statements
PREPARED = b"\x01"
_SHORT, _COUNT = struct.Struct(">H"), struct.Struct(">i")
_Result = ProtocolHandler.message_types_by_opcode[ResultMessage.opcode]


class EncodedRows(NamedTuple):
    """One statement for many rows of encoded bound values, in place of a batch's statements."""

    query_id: bytes
    parameters: int  # of the statement
    rows: Sequence[bytes]

    def encode(self) -> bytes:
        """Return the statements as a batch has them, after their number."""
        head = PREPARED + _SHORT.pack(len(self.query_id)) + self.query_id + _SHORT.pack(self.parameters)
        return _SHORT.pack(len(self.rows)) + head + head.join(self.rows)


class PendingRows(NamedTuple):
    """Rows of an answer, not decoded yet."""

    raw: Callable[[], RawRows]
    decode: Callable[[], Rows]


def raw_rows(_names: Sequence[str], rows: PendingRows) -> RawRows:
    """Return rows as sent: a row factory."""
    return rows.raw()


def decoded_rows(_names: Sequence[str], rows: PendingRows) -> Rows:
    """Return rows as tuples of Python's objects: a row factory."""
    return rows.decode()


class _LateResult(_Result):  # type: ignore[misc, valid-type]
    """A result whose rows are decoded by the row factory."""

    def recv_results_rows(  # type: ignore[no-untyped-def]  # as the driver's
        self, f, protocol_version, user_type_map, result_metadata, column_encryption_policy
    ) -> None:
        """Keep the rows as they are."""
        start = f.tell()
        self.recv_results_metadata(f, user_type_map)
        metadata = self.column_metadata or result_metadata
        self.column_names = [column[2] for column in metadata]
        self.column_types = [column[3] for column in metadata]
        rows_at = f.tell()

        def decode() -> Rows:
            f.seek(start)
            decoder = _Result(self.kind)
            decoder.recv_results_rows(f, protocol_version, user_type_map, result_metadata, column_encryption_policy)
            rows: Rows = list(decoder.parsed_rows)
            return rows

        def raw() -> RawRows:
            f.seek(rows_at)
            (count,) = _COUNT.unpack(f.read(_COUNT.size))
            return RawRows(count, f.read())

        self.parsed_rows = PendingRows(raw, decode)


class _EncodedBatch(BatchMessage):  # type: ignore[misc]
    """A batch of encoded rows."""

    def __init__(self, batch: BatchMessage) -> None:
        """Take the place of a message of the driver."""
        self.__dict__.update(batch.__dict__)
        self.queries, self._encoded = (), batch.queries

    def send_body(self, f: io.BytesIO, protocol_version: int) -> None:
        """Write the batch."""
        empty = io.BytesIO()
        super().send_body(empty, protocol_version)
        around = empty.getvalue()
        f.write(around[: BATCH_HEAD - _SHORT.size])
        f.write(self._encoded.encode())
        f.write(around[BATCH_HEAD:])


class Handler(ProtocolHandler):  # type: ignore[misc]
    """The driver's handler with late results and encoded batches."""

    message_types_by_opcode = ProtocolHandler.message_types_by_opcode | {ResultMessage.opcode: _LateResult}

    @classmethod
    def encode_message(cls, msg: Any, *rest: Any, **named: Any) -> bytes:
        """Encode a message."""
        if isinstance(msg, BatchMessage) and isinstance(msg.queries, EncodedRows):
            msg = _EncodedBatch(msg)
        encoded: bytes = super().encode_message(msg, *rest, **named)
        return encoded

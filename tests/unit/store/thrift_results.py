"""Thrift's encoding of results, read in pieces."""

from collections.abc import Callable

import Hbase_thrift as api  # made by happybase when it is imported
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

NAME = "scannerGetList"


def encoded(rows: list[tuple[bytes, dict[bytes, tuple[bytes, int]]]], number: int = 7) -> bytes:
    results = [
        api.TRowResult(row=key, columns={c: api.TCell(value=v, timestamp=t) for c, (v, t) in cells.items()})
        for key, cells in rows
    ]
    return written(api.Hbase.scannerGetList_result(success=results), TMessageType.REPLY, number)


def written(result: object, kind: int, number: int) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer, decode_response=False)
    protocol.write_message_begin(NAME, kind, number)
    result.write(protocol)  # type: ignore[attr-defined]
    protocol.write_message_end()
    return bytes(buffer.getvalue())


def pieces(data: bytes, size: int) -> Callable[[memoryview], int]:
    at = 0

    def receive_into(room: memoryview) -> int:
        nonlocal at
        part = data[at : at + min(size, len(room))]
        room[: len(part)] = part
        at += len(part)
        return len(part)

    return receive_into

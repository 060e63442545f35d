"""Ports of this machine: find free ones, and check whether a service answers."""

import random
import socket
import struct
from http.client import HTTPConnection, HTTPException

from scripts.peers.process import PeerError

HOST = "127.0.0.1"
ANSWER_S = 3  # until a service that is ready has answered, at most
BELOW_EPHEMERAL = range(20000, 32768)  # Linux assigns ports from 32768 up to outgoing connections
# Of Thrift's binary protocol.
STRICT_CALL = 0x80010001  # version 1, and "a call"
STRING, STRUCT, STOP = 11, 12, b"\0"
REFUSED = struct.pack(">BHBH", STRUCT, 1, STRING, 1)  # exception 1 of the call, with its message as field 1
ENABLE = b"enableTable"
NO_TABLE = b"tsd.no-such-table"
# Of Cassandra's protocol, version 4: a request with opcode 5 and no body, and the opcode of its answer.
CQL_OPTIONS, CQL_SUPPORTED = bytes.fromhex("04 00 0000 05 00000000"), b"\x06"


def pick(wanted: int) -> int:
    """Return `wanted` if it is free, or any free port for 0. Raise PeerError.

    An outgoing connection could take a port of the ephemeral range before the JVM listens.
    """
    if wanted:
        if not _free(wanted):
            raise PeerError(f"port {wanted} of {HOST} is taken: name another one, or 0 for any that is free")
        return wanted
    return next(port for port in random.sample(BELOW_EPHEMERAL, 200) if _free(port))


def thrift_answers(port: int) -> bool:
    """Whether a Thrift gateway and its HBase are ready: they refuse to enable a table that does not exist, with the
    right error.

    Table names are listed four seconds before the master is ready, and until then it refuses changes of tables; hence
    this probe. It is written by hand because no package is installed yet where this runs.
    """
    call = struct.pack(">II", STRICT_CALL, len(ENABLE)) + ENABLE + struct.pack(">I", 0)
    argument = struct.pack(">BHI", STRING, 1, len(NO_TABLE)) + NO_TABLE + STOP
    try:
        with socket.create_connection((HOST, port), timeout=ANSWER_S) as connection:
            connection.sendall(call + argument)
            with connection.makefile("rb") as stream:
                stream.read(len(call))  # the same bytes, with "answer" in place of "call"
                answer = stream.read(struct.calcsize(">BHBHI"))
                length = int.from_bytes(answer[-4:])
                text = stream.read(length if answer.startswith(REFUSED) else 0)
    except OSError:
        return False
    return b"TableNotFound" in text


def cql_answers(port: int) -> bool:
    """Whether a Cassandra node says which protocols it speaks, which it does once it accepts clients."""
    try:
        with socket.create_connection((HOST, port), timeout=ANSWER_S) as connection:
            connection.sendall(CQL_OPTIONS)
            with connection.makefile("rb") as stream:
                answer = stream.read(len(CQL_OPTIONS))
    except OSError:
        return False
    return answer[4:5] == CQL_SUPPORTED


def http_answers(port: int, path: str) -> bool:
    """Whether a GET is answered with status 200."""
    connection = HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def listens(port: int) -> bool:
    """Whether a connection is accepted on the port."""
    try:
        socket.create_connection((HOST, port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Java: lingering closed connections do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

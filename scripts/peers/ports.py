"""Ports of this machine: free ones, and whether what listens there really answers."""

import random
import socket
import struct
from http.client import HTTPConnection, HTTPException

from scripts.peers.process import PeerError

HOST = "127.0.0.1"
BELOW_EPHEMERAL = range(20000, 32768)  # Linux gives out ports from 32768 up to whoever just connects somewhere
# Of Thrift's binary protocol.
STRICT_CALL = 0x80010001  # version 1, and "a call"
STRING, STRUCT, STOP = 11, 12, b"\0"
REFUSED = struct.pack(">BHBH", STRUCT, 1, STRING, 1)  # exception 1 of the call, and in it field 1: what went wrong
ENABLE = b"enableTable"
NO_TABLE = b"tsd.no-such-table"


def pick(wanted: int) -> int:
    """`wanted` if it is free, or any free port for 0; raises PeerError.

    One in the ephemeral range could be taken by an outgoing connection before the JVM gets round to listening.
    """
    if wanted:
        if not _free(wanted):
            raise PeerError(f"port {wanted} of {HOST} is taken: name another one, or 0 for any that is free")
        return wanted
    return next(port for port in random.sample(BELOW_EPHEMERAL, 200) if _free(port))


def thrift_answers(port: int, timeout_s: float) -> bool:
    """Whether a Thrift gateway and the HBase behind it are ready for work: it is asked to enable a table that does not
    exist, and says so.

    Names of tables are listed four seconds before the master is ready, and a master that is not ready refuses whatever
    changes tables: hence this question. It is written out by hand because nothing is installed yet where this runs.
    """
    call = struct.pack(">II", STRICT_CALL, len(ENABLE)) + ENABLE + struct.pack(">I", 0)
    argument = struct.pack(">BHI", STRING, 1, len(NO_TABLE)) + NO_TABLE + STOP
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(call + argument)
            with connection.makefile("rb") as stream:
                stream.read(len(call))  # the same again, but for "an answer" in the place of "a call"
                answer = stream.read(struct.calcsize(">BHBHI"))
                length = int.from_bytes(answer[-4:])
                text = stream.read(length if answer.startswith(REFUSED) else 0)
    except OSError:
        return False
    return b"TableNotFound" in text


def http_answers(port: int, path: str, timeout_s: float) -> bool:
    """Whether a GET is answered with 200."""
    connection = HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((HOST, port), timeout=3).close()
    except OSError:
        return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: what lingers closed is no hindrance
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

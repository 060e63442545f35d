"""Records of the log of refused lines ↔ lines of JSON.

Lines are bytes in no known encoding: each byte is kept as the character of its number, as the port has it.
"""

from typing import NamedTuple

import msgspec

from tsd.errors import TsdError

LINE_BYTES = 32 << 10  # of a line; longer ones (points of HTTP) are cut
MESSAGE_CHARACTERS = 500
UNCOUNTED = -1  # of a telnet line that was too long only the beginning is kept, while the rest comes


class Refused(msgspec.Struct, tag_field="kind", tag="refused", frozen=True, gc=False):
    """A line that was refused."""

    time: int  # ms
    reason: str
    message: str
    peer: str  # address and port it came from
    account: str  # empty: none was shown
    line: str
    cut: int = 0  # bytes that are missing at its end; UNCOUNTED: some

    @property
    def bytes(self) -> bytes:
        """The line as it came, without its LF: a telnet line, or `api/…` and a data point's JSON."""
        return self.line.encode("latin-1")

    @property
    def shown(self) -> str:
        """The line for people: in UTF-8 where it is that."""
        try:
            return self.bytes.decode()
        except UnicodeDecodeError:
            return self.line


class LeftOut(msgspec.Struct, tag_field="kind", tag="left_out", frozen=True):
    """Refused lines that were not kept, because there were too many, or the disk took none."""

    since: int  # ms
    until: int
    lines: dict[str, int]  # by reason


class Replayed(msgspec.Struct, tag_field="kind", tag="replayed", frozen=True, gc=False):
    """A refused line was sent again."""

    time: int
    of: str  # the record's name
    taken: bool
    reason: str = ""  # why not
    message: str = ""


Record = Refused | LeftOut | Replayed
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class NoRecord(TsdError):
    """Bytes that are no record."""


class Outcome(NamedTuple):
    """What became of a line that was sent again."""

    taken: bool
    reason: str = ""
    message: str = ""


def refused(time_ms: int, reason: str, message: str, peer: str, account: str, line: bytes, cut: int = 0) -> Refused:
    """The record of a line, which lacks `cut` bytes at its end."""
    told = message[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()  # half a surrogate pair is no text
    return Refused(time_ms, reason, told, peer, account, line.decode("latin-1"), cut)


def encode_records(records: list[Record]) -> bytes:
    """Records as lines of JSON."""
    return bytes(_encoder.encode_lines(records))


def decode_record(line: bytes) -> Record:
    """The record that a line of JSON says; raises NoRecord.

    >>> decode_record(encode_records([refused(1, "r", "m", "p:1", "", b"put \\xff")])).bytes
    b'put \\xff'
    """
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as exc:
        raise NoRecord(str(exc)) from exc

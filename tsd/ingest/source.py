"""On whose behalf lines come in: what the way in asks whoever that is, and tells it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tsd.codec.uid import Kind
from tsd.errors import BadLine


class Refusal(NamedTuple):
    """A line that was refused, whole and without its LF; of one that is known in part only, that part."""

    line: bytes
    error: BadLine


class Source(Protocol):
    """Whom lines come from."""

    @property
    def peer(self) -> str:
        """Address and port."""

    @property
    def account(self) -> str:
        """The name it has shown to have; empty: none."""

    @property
    def keeps_refused(self) -> bool:
        """Whether its refused lines are to be kept."""

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Why it may bring no new name now; None where it may."""

    def named(self, kind: Kind, name: bytes) -> None:
        """A name that it brought gets a UID."""

    def met_series(self, count: int) -> None:
        """So many series came that were not known."""

    def took(self, accepted: int, refusals: Sequence[Refusal]) -> None:
        """What became of lines of its."""

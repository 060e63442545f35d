"""The account of a torture: what became of every line, by fault."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsd.torture.senders import Sender
from tsd.torture.verdict import EXAMPLES, NOTHING, Finding, Verdict


@dataclass
class Ledger:
    """Counts lines, but where it says otherwise. All that was sent is acknowledged, refused or open."""

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # how often each was done
    sent: int = 0  # different lines, those that must be refused among them
    repeated: int = 0  # lines sent again
    acknowledged: int = 0  # by `sync`, or by HTTP's 204
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    put_off: Counter[str] = field(default_factory=Counter)  # requests told to come again
    open: int = 0  # lines of which nobody was told anything: a fault came first
    stored: int = 0  # points
    replaced: int = 0  # acknowledged lines whose time was given a later value
    lost: Finding = NOTHING
    invented: Finding = NOTHING
    doubled: Finding = NOTHING
    troubles: list[str] = field(default_factory=list)  # what else went wrong
    worst: dict[str, float] = field(default_factory=dict)  # the highest of each figure that was measured

    @property
    def good(self) -> bool:
        """Whether nothing acknowledged was lost, nothing invented, nothing doubled, and nothing else went wrong."""
        return not (self.lost.count or self.invented.count or self.doubled.count or self.troubles)

    def enter(self, senders: Iterable[Sender], verdict: Verdict) -> None:
        """Enter what became of some clients' lines."""
        for sender in senders:
            acknowledged = int(sender.acknowledged().sum())
            self.sent += sender.sent + sender.bad
            self.repeated += sender.repeated
            self.acknowledged += acknowledged
            self.refused.update(sender.refused)
            self.put_off.update(sender.put_off)
            self.open += sender.sent + sender.bad - acknowledged - sender.refused.total()
        self.stored += verdict.stored
        self.replaced += verdict.replaced
        self.find(verdict.lost, verdict.invented, verdict.doubled)

    def find(self, lost: Finding, invented: Finding, doubled: Finding) -> None:
        """Enter what should not be."""
        self.lost = self.lost.plus(lost)
        self.invented = self.invented.plus(invented)
        self.doubled = self.doubled.plus(doubled)

    def trouble(self, told: str) -> None:
        """Enter what else should not be."""
        if len(self.troubles) < EXAMPLES:
            self.troubles.append(told)

    def measure(self, name: str, figure: float) -> None:
        """Enter a figure, if it is the highest of its name."""
        self.worst[name] = max(figure, self.worst.get(name, figure))

    def add(self, other: "Ledger") -> None:
        """Enter all of another one."""
        for name in ("rounds", "sent", "repeated", "acknowledged", "open", "stored", "replaced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("faults", "refused", "put_off"):
            getattr(self, name).update(getattr(other, name))
        self.find(other.lost, other.invented, other.doubled)
        for told in other.troubles:
            self.trouble(told)
        for name, figure in other.worst.items():
            self.measure(name, figure)

    def told(self) -> dict[str, Any]:
        """All of it, for machines."""
        return {
            "rounds": self.rounds,
            "faults": dict(self.faults),
            "sent": self.sent,
            "repeated": self.repeated,
            "acknowledged": self.acknowledged,
            "refused": dict(self.refused),
            "put_off": dict(self.put_off),
            "open": self.open,
            "stored": self.stored,
            "replaced": self.replaced,
            **{name: getattr(self, name).count for name in ("lost", "invented", "doubled")},
            "examples": {name: list(getattr(self, name).examples) for name in ("lost", "invented", "doubled")},
            "troubles": self.troubles,
            "worst": {name: round(figure, 3) for name, figure in self.worst.items()},
        }


COLUMNS = (
    "fault",
    "rounds",
    "sent",
    "acknowledged",
    "refused",
    "open",
    "stored",
    "replaced",
    "lost",
    "invented",
    "doubled",
)


def table(ledgers: Sequence[tuple[str, Ledger]]) -> list[str]:
    """Ledgers by name, for people: one line each, under a line of heads."""
    rows = [COLUMNS, *(_cells(name, ledger) for name, ledger in ledgers)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _cells(name: str, ledger: Ledger) -> tuple[str, ...]:
    numbers = (
        ledger.rounds, ledger.sent, ledger.acknowledged, ledger.refused.total(), ledger.open, ledger.stored,
        ledger.replaced, ledger.lost.count, ledger.invented.count, ledger.doubled.count,
    )  # fmt: skip
    return name, *map(str, numbers)

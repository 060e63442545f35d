"""The report of `tsd torture`: counts of lines by outcome and fault."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsd.cli.torture.senders import Sender
from tsd.cli.torture.verify import EXAMPLES, NO_FINDING, Discrepancy, Verification


@dataclass
class TortureReport:
    """Counts of lines, if not said otherwise. sent = acknowledged + refused + open."""

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # how often each was injected
    sent: int = 0  # different lines, including bad ones
    repeated: int = 0  # lines resent
    acknowledged: int = 0  # by `sync`, or by HTTP's 204
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    deferred: Counter[str] = field(default_factory=Counter)  # requests answered with 503
    open: int = 0  # lines not answered before the fault
    stored: int = 0  # points
    replaced: int = 0  # acknowledged lines whose time got a later value
    lost: Discrepancy = NO_FINDING
    invented: Discrepancy = NO_FINDING
    doubled: Discrepancy = NO_FINDING
    errors: list[str] = field(default_factory=list)  # other failures
    maxima: dict[str, float] = field(default_factory=dict)  # the highest value of each measurement

    @property
    def good(self) -> bool:
        """Return whether nothing was lost, invented or doubled, and no other failure occurred."""
        return not (self.lost.count or self.invented.count or self.doubled.count or self.errors)

    def add_senders(self, senders: Iterable[Sender], verification: Verification) -> None:
        """Add the lines of clients and the outcome of their verification."""
        for sender in senders:
            acknowledged = int(sender.acknowledged().sum())
            self.sent += sender.sent + sender.bad
            self.repeated += sender.repeated
            self.acknowledged += acknowledged
            self.refused.update(sender.refused)
            self.deferred.update(sender.deferred)
            self.open += sender.sent + sender.bad - acknowledged - sender.refused.total()
        self.stored += verification.stored
        self.replaced += verification.replaced
        self.add_findings(verification.lost, verification.invented, verification.doubled)

    def add_findings(self, lost: Discrepancy, invented: Discrepancy, doubled: Discrepancy) -> None:
        """Add lost, invented and doubled points."""
        self.lost = self.lost.plus(lost)
        self.invented = self.invented.plus(invented)
        self.doubled = self.doubled.plus(doubled)

    def add_error(self, error: str) -> None:
        """Add another failure."""
        if len(self.errors) < EXAMPLES:
            self.errors.append(error)

    def measure(self, name: str, figure: float) -> None:
        """Record a measurement if it is the highest of its name."""
        self.maxima[name] = max(figure, self.maxima.get(name, figure))

    def add(self, other: "TortureReport") -> None:
        """Add another report."""
        for name in ("rounds", "sent", "repeated", "acknowledged", "open", "stored", "replaced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("faults", "refused", "deferred"):
            getattr(self, name).update(getattr(other, name))
        self.add_findings(other.lost, other.invented, other.doubled)
        for error in other.errors:
            self.add_error(error)
        for name, figure in other.maxima.items():
            self.measure(name, figure)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "rounds": self.rounds,
            "faults": dict(self.faults),
            "sent": self.sent,
            "repeated": self.repeated,
            "acknowledged": self.acknowledged,
            "refused": dict(self.refused),
            "deferred": dict(self.deferred),
            "open": self.open,
            "stored": self.stored,
            "replaced": self.replaced,
            **{name: getattr(self, name).count for name in ("lost", "invented", "doubled")},
            "examples": {name: list(getattr(self, name).examples) for name in ("lost", "invented", "doubled")},
            "errors": self.errors,
            "maxima": {name: round(figure, 3) for name, figure in self.maxima.items()},
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


def table(reports: Sequence[tuple[str, TortureReport]]) -> list[str]:
    """Format reports by name as a table with a header line."""
    rows = [COLUMNS, *(_cells(name, report) for name, report in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _cells(name: str, report: TortureReport) -> tuple[str, ...]:
    numbers = (
        report.rounds, report.sent, report.acknowledged, report.refused.total(), report.open, report.stored,
        report.replaced, report.lost.count, report.invented.count, report.doubled.count,
    )  # fmt: skip
    return name, *map(str, numbers)

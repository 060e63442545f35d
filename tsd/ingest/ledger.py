"""Where every put line went: what came in is stored, journaled or refused, and nothing else.

Received and refused lines are counted by the intake, stored ones by the writer, waiting ones by the windows themselves;
so that the sum is a check and not a definition.
"""

from collections import Counter


class Ledger:
    """Counts of lines since the start. A line found in the journal at the start counts as received then."""

    def __init__(self) -> None:
        self.received = 0
        self.stored = 0
        self.refused: Counter[str] = Counter()  # by reason

    def refuse(self, reason: str, lines: int = 1) -> None:
        """Lines that will not be stored."""
        self.refused[reason] += lines

    def balance(self, journaled: int) -> int:
        """Received lines that are nowhere, given those that wait in windows: 0, or there is a bug."""
        return self.received - self.stored - sum(self.refused.values()) - journaled

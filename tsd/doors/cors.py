"""Which foreign pages' scripts may ask, and how they are told (wire.md §9.3)."""

from collections.abc import Mapping, Sequence

from tsd.errors import Refused

METHODS = "GET, POST, PUT, DELETE"


class Cors:
    """The origins that are let in: `*` for all, none where empty."""

    def __init__(self, domains: str, headers: str) -> None:
        self._domains = frozenset(domain.strip().upper() for domain in domains.split(",") if domain.strip())
        self._headers = headers

    def answers(self, origin: str | None) -> bool:
        """Whether it is for `check` to say what a page of this origin, or one that does not say its own, may ask."""
        return "*" in self._domains if not origin else bool(self._domains)

    def check(self, method: str, headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """The headers that a response to this request carries.

        Raises Refused: for OPTIONS without an origin that could be let in, and for one that is not (with status 200,
        as OpenTSDB has it).
        """
        origin = headers.get("origin")
        if not origin or not self._domains:
            if method == "OPTIONS":
                raise Refused(405, "Method not allowed", "The HTTP method [OPTIONS] is not permitted")
            return ()
        if "*" not in self._domains and origin.upper() not in self._domains:
            raise Refused(200, "CORS domain not allowed", f"The domain [{origin}] is not permitted access")
        return (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", self._headers),
            ("Vary", "Origin"),
        )

"""Headers that keep a browser safe, whatever a response holds: nothing of it is run, framed, kept or told to others."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256

from tsd.doors.pages import STYLE

Header = tuple[str, str]

NOSNIFF = ("X-Content-Type-Options", "nosniff")
_STYLE = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"  # the only one that our pages have
POLICY = (
    "Content-Security-Policy",
    f"default-src 'none'; style-src {_STYLE}; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
)
OWN_FILES_POLICY = ("Content-Security-Policy", "frame-ancestors 'self'")  # an operator's own pages may do as they like
UNKEPT = ("Cache-Control", "no-store")
OTHERS = (("X-Frame-Options", "DENY"), ("Referrer-Policy", "no-referrer"))


def safe_headers(own: Sequence[Header], *, script: bool, hsts_s: int) -> list[Header]:
    """What a response carries beside its `own` headers. `script`: it is one that a page loads, and would be refused for
    its type. `hsts_s`: how long a browser is to speak TLS only; 0: no word of it."""
    names = {name.lower() for name, _ in own}
    found = [] if script else [NOSNIFF]
    if POLICY[0].lower() not in names:
        found += [POLICY, *OTHERS]
    if UNKEPT[0].lower() not in names:
        found.append(UNKEPT)
    if hsts_s:
        found.append(("Strict-Transport-Security", f"max-age={hsts_s}"))
    return found

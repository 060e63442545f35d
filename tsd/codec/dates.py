"""Times as people write them → milliseconds: `1h-ago`, `2023/11/14-22:13:20`, Unix seconds or milliseconds."""

import re
from datetime import datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from tsd.codec.putline import FIRST_MS
from tsd.errors import TsdError

UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
    "n": 30 * 86_400_000,
    "y": 365 * 86_400_000,
}
MOST_DIGITS = 20  # Python refuses to read some thousands
_DURATION = re.compile(rf"(\d{{1,{MOST_DIGITS}}})(ms|[smhdwny])", re.IGNORECASE)
_DATE_FORMS = {10: "%Y/%m/%d", 16: "%Y/%m/%d-%H:%M", 19: "%Y/%m/%d-%H:%M:%S"}
JAVA_ZONES = {  # short names that Java has besides those of the tz database
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
WANTED = "wanted e.g. 1h-ago, now, 1700000000, 1700000000500 or 2023/11/14-22:13:20"


class BadDate(TsdError):
    """A time that cannot be read."""


@lru_cache(64)
def find_zone(name: str) -> ZoneInfo | None:
    """Return a time zone of Java, or None.

    >>> find_zone("Europe/Berlin"), find_zone("JST"), find_zone("Nope/Zone")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), zoneinfo.ZoneInfo(key='Asia/Tokyo'), None)
    """
    try:
        return ZoneInfo(JAVA_ZONES.get(name, name))
    except (KeyError, ValueError, OSError):
        return None


def duration_ms(text: str) -> int:
    """Return milliseconds of e.g. `90s`, `1h`, `30d`. Raise BadDate.

    >>> duration_ms("90s"), duration_ms("1n")
    (90000, 2592000000)
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadDate(f"got duration {text!r}, wanted a number and one of {', '.join(UNITS_MS)}")
    return int(match[1]) * UNITS_MS[match[2].lower()]


def parse_date(text: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Return milliseconds of a time; dates without a zone are in `zone` (None: the machine's). Raise BadDate.

    >>> parse_date("1356998400", 0), parse_date("1356998400500", 0), parse_date("1h-ago", 3_600_000)
    (1356998400000, 1356998400500, 0)
    >>> import datetime
    >>> parse_date("2013/01/01-00:00", 0, datetime.timezone.utc)
    1356998400000
    """
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if word.lower().endswith("-ago"):
        return now_ms - duration_ms(word[:-4])
    if "/" in word or ":" in word:
        form = _DATE_FORMS.get(len(word))
        try:
            if form is None:
                raise ValueError
            naive = datetime.strptime(word.replace(" ", "-"), form)
            return round(naive.replace(tzinfo=zone).timestamp() * 1000)
        except (ValueError, OverflowError) as exc:  # also for the years 1 and 9999 in some zones
            raise BadDate(f"got time {text!r}, {WANTED}") from exc
    digits = word[:-2] if word.endswith("ms") else word
    if not (digits.isascii() and digits.isdigit()) or len(digits) > MOST_DIGITS:
        raise BadDate(f"got time {text!r}, {WANTED}")
    number = int(digits)
    return number if digits is not word or number >= FIRST_MS else number * 1000

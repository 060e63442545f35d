"""Settings of KairosDB's wire."""

from dataclasses import dataclass

from tsd.config.keys import setting

# fmt: off


@dataclass(frozen=True)
class KairosSettings:
    """Settings of KairosDB's endpoints and of its telnet dialect."""

    kairosdb: bool = setting(
        "tsd.kairosdb.enabled", False,
        "Answer KairosDB's REST API, from /api/v1/datapoints on (docs/kairosdb.md). Always on with KairosDB's tables.")
    kairosdb_dialect: bool = setting(
        "tsd.kairosdb.dialect", False,
        "Where OpenTSDB and KairosDB differ on the port, speak KairosDB's dialect: the telnet commands put, putm and "
        "puts, and version. Telnet lines are then read as UTF-8, or as ISO-8859-1 where they are not valid UTF-8. "
        "Needs tsd.kairosdb.enabled, or KairosDB's tables.")

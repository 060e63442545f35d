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
        "Where both have a path, /api/v1/version, answer as KairosDB does. Needs tsd.kairosdb.enabled.")

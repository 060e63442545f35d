"""Every setting with the value in use, as a file spells it: for `tsd check-config --show` and `/api/config`."""

from tsd.config.loader import keys
from tsd.config.settings import Config


def in_use(config: Config) -> dict[str, str]:
    """Return every key with its value as a file spells it. Defaults that depend on other settings are resolved, except
    those that only a running daemon knows: `unset`."""
    resolved = {
        "anonymous": "" if config.authentication else "read,write",
        "auto_create_metrics": config.creates_metrics,
        "flush_interval_ms": config.write_interval_ms,
        "series_index": config.indexes_series,
        "tls_hsts_s": config.hsts_s,
    }
    values = {key: getattr(config, field.name) for key, field in keys().items()}
    return {
        key: _spelt(resolved.get(field.name, "unset") if values[key] is None else values[key])
        for key, field in keys().items()
    }


def _spelt(value: object) -> str:
    """Return a value as a file spells it."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))

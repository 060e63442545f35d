"""Files that systemd hands to a service as credentials (LoadCredential=): settings name them as `credential:NAME`, or
as `%d/NAME`, as units do.

Where there are no credentials the name stays as it is: commands on a shell read the same configuration and need none.
"""

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "CREDENTIALS_DIRECTORY"  # systemd.exec(5)
PREFIXES = ("credential:", "%d/")
KEYS = frozenset(  # settings that may name one
    """
    tsd.auth.file tsd.tls.certificate tsd.tls.key tsd.tls.client_ca tsd.tls.client_crl tsd.query.limits.overrides.config
    tsd.rollups.config tsd.core.histograms.config
    """.split()
)


def resolved(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The path of the credential that a setting names; what names none, or cannot be resolved, as it is. Raises
    ValueError for a name that none can have.

    >>> resolved("credential:tls.key", {"CREDENTIALS_DIRECTORY": "/run/credentials/tsd.service"})
    '/run/credentials/tsd.service/tls.key'
    >>> resolved("%d/tls.key", {}), resolved("/etc/tsd/tls.key", {})
    ('%d/tls.key', '/etc/tsd/tls.key')
    """
    name = name_of(text)
    if name is None:
        return text
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"got {text!r}, wanted the name of a credential, without a slash")
    folder = environ.get(FOLDER)
    return str(Path(folder) / name) if folder else text


def name_of(text: str) -> str | None:
    """The name of the credential that a setting asks for; None where it asks for none."""
    return next((text.removeprefix(prefix) for prefix in PREFIXES if text.startswith(prefix)), None)

"""Settings of Bigtable."""

import json
from pathlib import Path

from tsd.config.keys import setting, settings_section

# Keys of OpenTSDB on Bigtable -> ours.
ALIASES = {
    "google.bigtable.project.id": "tsd.storage.bigtable.project",
    "google.bigtable.instance.id": "tsd.storage.bigtable.instance",
    "google.bigtable.app_profile.id": "tsd.storage.bigtable.app_profile",
    "google.bigtable.auth.json.keyfile": "tsd.storage.bigtable.credentials",
    "google.bigtable.emulator.endpoint.host": "tsd.storage.bigtable.emulator",
}
KEY_PARTS = ("client_email", "private_key", "token_uri")  # of a service account's file


@settings_section
class BigtableSettings:
    """How Bigtable is reached."""

    # fmt: off

    bigtable_project: str = setting("tsd.storage.bigtable.project", "", "Google Cloud project of the instance.")
    bigtable_instance: str = setting("tsd.storage.bigtable.instance", "", "Instance with the tables.")
    bigtable_app_profile: str = setting(
        "tsd.storage.bigtable.app_profile", "",
        "App profile, which must route to one cluster and allow single-row transactions. Empty: the default one.")
    bigtable_credentials: str = setting(
        "tsd.storage.bigtable.credentials", "",
        "File with a service account's key, for example credential:bigtable.json. Empty: application default "
        "credentials.")
    bigtable_emulator: str = setting(
        "tsd.storage.bigtable.emulator", "",
        "host:port of an emulator, which needs no credentials. Empty: the variable BIGTABLE_EMULATOR_HOST, or else the "
        "service.")
    bigtable_channels: int = setting(
        "tsd.storage.bigtable.channels", 2, "Connections. Each carries 100 calls at once.", low=1, high=32)
    bigtable_timeout_ms: int = setting(
        "tsd.storage.bigtable.timeout", 15000, "Timeout of one call with its repetitions.", "ms", low=100)


def key_file_problem(file: str) -> str:
    """Return what is wrong with the file of a service account's key, empty if nothing is."""
    try:
        found = json.loads(Path(file).read_text("utf-8"))
    except OSError as exc:
        return f"{file} cannot be read: {exc.strerror}"
    except ValueError:
        return f"{file} has no JSON, wanted the key of a service account"
    missing = [part for part in KEY_PARTS if not isinstance(found, dict) or part not in found]
    return f"{file} has no {', '.join(missing)}, wanted the key of a service account" if missing else ""

"""Settings that name what systemd hands over."""

from pathlib import Path

import pytest
import trio

from tests.running import running
from tsd.config import Config, Given, keys, read_settings
from tsd.credentials import KEYS, resolved
from tsd.errors import BadConfig


@pytest.mark.parametrize("text", ["credential:tls.key", "%d/tls.key"])
def test_a_credential_is_found(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/tsd.service")
    config, _ = read_settings([Given("test", "tsd.tls.key", text), Given("test", "tsd.tls.certificate", "a.pem")])
    assert (config.tls_key, config.tls_certificate) == ("/run/credentials/tsd.service/tls.key", "a.pem")


@pytest.mark.parametrize("text", ["credential:", "credential:..", "%d/../shadow", "credential:a/b"])
def test_a_name_leads_nowhere_else(text: str) -> None:
    with pytest.raises(ValueError, match="wanted the name of a credential"):
        resolved(text, {"CREDENTIALS_DIRECTORY": "/run/credentials/tsd.service"})


def test_only_settings_that_name_files_may_name_credentials() -> None:
    assert keys().keys() >= KEYS
    assert read_settings([Given("test", "tsd.core.tag.allow_specialchars", "%d/")])[0].allow_specialchars == "%d/"


async def test_commands_can_do_without_and_a_daemon_says_what_it_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    named = {"tsd.auth.file": "credential:tokens"}
    assert read_settings(Given("test", *item) for item in named.items())[0] == Config(auth_file="credential:tokens")
    with trio.fail_after(60), pytest.raises(BaseExceptionGroup) as caught:
        async with running(tmp_path / "state", named):
            raise AssertionError("it runs")
    [error] = caught.value.exceptions
    assert isinstance(error, BadConfig)
    assert error.problems == [
        "tsd.auth.file: got 'credential:tokens', but systemd handed over no credentials (LoadCredential=)"
    ]

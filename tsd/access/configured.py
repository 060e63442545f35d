"""What settings of access contradict each other."""

from collections.abc import Callable, Iterator

from tsd.access.accounts import read_roles
from tsd.access.networks import read_networks
from tsd.access.roles import Role
from tsd.access_settings import AccessSettings


def contradictions(settings: AccessSettings) -> Iterator[tuple[set[str], str]]:
    """What single settings cannot tell: the keys that it is about, and a sentence."""
    texts: dict[str, tuple[Callable[[str], object], str]] = {
        "tsd.network.allow": (read_networks, settings.network_allow),
        "tsd.network.proxy_protocol": (read_networks, settings.announcing),
        "tsd.http.trusted_proxies": (read_networks, settings.forwarding),
        "tsd.access.read_networks": (read_networks, settings.read_networks),
        "tsd.access.write_networks": (read_networks, settings.write_networks),
        "tsd.access.admin_networks": (read_networks, settings.admin_networks),
        "tsd.access.anonymous": (read_roles, settings.anonymous or ""),
    }
    for key, (read, text) in texts.items():
        try:
            read(text)
        except ValueError as exc:
            yield {key}, f"{key}: {exc}"
    if settings.authentication and not settings.auth_file:
        yield (
            {"tsd.core.authentication.enable", "tsd.auth.file"},
            "tsd.core.authentication.enable: wants tsd.auth.file, a file of accounts as `tsd token add` writes it",
        )
    if settings.tls_client_crl and not settings.tls_client_ca:
        yield {"tsd.tls.client_crl", "tsd.tls.client_ca"}, "tsd.tls.client_crl: wants tsd.tls.client_ca"
    for key, value in (
        ("tsd.tls.key", settings.tls_key),
        ("tsd.tls.client_ca", settings.tls_client_ca),
        ("tsd.tls.required", settings.tls_required),
    ):
        if value and not settings.tls_certificate:
            yield {key, "tsd.tls.certificate"}, f"{key}: wants tsd.tls.certificate"
    if settings.tls_client_certificate == "required" and not settings.tls_client_ca:
        yield (
            {"tsd.tls.client_certificate", "tsd.tls.client_ca"},
            "tsd.tls.client_certificate: required wants tsd.tls.client_ca",
        )


def warnings(settings: AccessSettings, anonymous: Role, bind: str) -> Iterator[str]:
    """What an operator may not have meant, for the log of each start."""
    local = bind in ("localhost", "::1") or bind.startswith("127.")
    if Role.ADMIN in anonymous and not settings.admin_networks:
        yield "everybody who can connect may administer this daemon (tsd.access.anonymous)"
    if not local and not settings.authentication and anonymous and not settings.network_allow:
        yield (
            "the port is open to the network, and whoever reaches it may read and write: set "
            "tsd.core.authentication.enable, or tsd.network.allow (docs/security.md)"
        )
    if not local and settings.authentication and not settings.tls_required:
        yield "tokens and passwords may come unencrypted over the network: set tsd.tls.required (docs/security.md)"

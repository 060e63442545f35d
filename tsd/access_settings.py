"""The settings of who gets in: networks, TLS, and who may do what."""

from dataclasses import dataclass

from tsd.setting import setting as _key

DAY_S = 86400


@dataclass(frozen=True)
class AccessSettings:
    """A part of Config. `None` stands for a default that depends on other settings."""

    network_allow: str = _key(
        "tsd.network.allow", "", "networks that may connect, with commas between: 10.0.0.0/8, fd00::/8. Empty: all"
    )
    ipv6_prefix: int = _key(
        "tsd.network.ipv6_prefix", 64, "bits of an IPv6 address that make a client: limits, quotas and failed "
        "tries are counted by them. 128: each address by itself", "bits", low=16, high=128,
    )  # fmt: skip
    announcing: str = _key(
        "tsd.network.proxy_protocol", "", "networks of balancers whose connections begin with a header of the PROXY "
        "protocol (version 1 or 2), and must: who it names is the client. Empty: none"
    )  # fmt: skip
    forwarding: str = _key(
        "tsd.http.trusted_proxies", "", "networks of HTTP proxies whose X-Forwarded-For and Forwarded are believed. "
        "Empty: none"
    )  # fmt: skip
    authentication: bool = _key(
        "tsd.core.authentication.enable", False, "clients must show who they are, by what tsd.auth.file has"
    )
    auth_file: str = _key("tsd.auth.file", "", "file of accounts, as `tsd token` writes it")
    anonymous: str | None = _key(
        "tsd.access.anonymous", None, "roles of clients that have not shown who they are: read, write, admin. Unset: "
        "read,write without authentication, none with it"
    )  # fmt: skip
    read_networks: str = _key("tsd.access.read_networks", "", "networks from where the role read acts. Empty: all")
    write_networks: str = _key("tsd.access.write_networks", "", "likewise, write")
    admin_networks: str = _key("tsd.access.admin_networks", "", "likewise, admin")
    health_for: str = _key(
        "tsd.access.health", "everybody", "who may ask /health: everybody, known (with any role), read or admin"
    )
    metrics_for: str = _key("tsd.access.metrics", "read", "who may ask /metrics, likewise")

    tls_certificate: str = _key(
        "tsd.tls.certificate", "", "PEM file of the certificate, and of those between it and its authority. With it "
        "the port speaks TLS, too: the first byte of a connection decides. Empty: no TLS"
    )  # fmt: skip
    tls_key: str = _key("tsd.tls.key", "", "PEM file of its key. Empty: in the certificate's file")
    tls_required: bool = _key("tsd.tls.required", False, "true: what is not encrypted is answered with an error only")
    tls_minimum: str = _key("tsd.tls.minimum", "1.2", "oldest version of TLS: 1.2 or 1.3")
    tls_client_ca: str = _key(
        "tsd.tls.client_ca", "", "PEM file of the authorities whose certificates clients may show. Empty: none are "
        "asked for"
    )  # fmt: skip
    tls_client_certificate: str = _key(
        "tsd.tls.client_certificate", "optional", "optional or required, of TLS connections where there is a client_ca"
    )
    tls_client_crl: str = _key(
        "tsd.tls.client_crl", "", "PEM file of the authorities' lists of revoked certificates, one for each that signs "
        "clients'. With it a client's certificate is refused that is on one, or where the list is missing or out of "
        "date. Empty: none is looked at"
    )  # fmt: skip
    tls_handshake_ms: int = _key(
        "tsd.tls.handshake_timeout", 10000, "how long a client may take to agree on encryption", "ms", low=100
    )
    tls_hsts_s: int | None = _key(
        "tsd.tls.hsts", None, "how long browsers are to use no plain HTTP with this host, whatever the port "
        "(Strict-Transport-Security). Unset: a day where tsd.tls.required, else 0: they are not told", "s", low=0,
    )  # fmt: skip

    @property
    def hsts_s(self) -> int:
        """How long browsers are to speak TLS only, the default worked out."""
        if self.tls_hsts_s is None:
            return DAY_S if self.tls_required else 0
        return self.tls_hsts_s

"""The settings of who gets in: networks, TLS, and who may do what."""

from dataclasses import dataclass

from tsd.setting import setting as _key


@dataclass(frozen=True)
class AccessSettings:
    """A part of Config."""

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
    tls_handshake_ms: int = _key(
        "tsd.tls.handshake_timeout", 10000, "how long a client may take to agree on encryption", "ms", low=100
    )

"""TLS of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """With a certificate the server speaks HTTPS, and nothing else."""

    ssl_certfile: str | None = option(
        None, "PEM file of the server's certificate and those between it and its CA; read again on change"
    )
    ssl_keyfile: str | None = option(
        None, "PEM file of the certificate's private key; default: it is in --ssl-certfile"
    )
    ssl_keyfile_password: str | None = option(
        None,
        "password of an encrypted private key; LLMKIT_SSL_KEYFILE_PASSWORD tells it no `ps`",
        secret=True,
    )
    ssl_ca_certs: str | None = option(None, "PEM file of the CAs whose certificates clients may show")
    ssl_cert_reqs: str = option(
        "none",
        "whether clients must show a certificate (mTLS)",
        choices=("none", "optional", "required"),
        synonyms={"0": "none", "1": "optional", "2": "required"},
    )
    ssl_ciphers: str | None = option(None, "ciphers for TLS 1.2, in OpenSSL's words; default: OpenSSL's own")

"""The TLS of the listening socket, from files that may be replaced while it serves."""

from __future__ import annotations

import ssl

from llmkit.config import TlsConfig
from llmkit.errors import StartupError, UsageError

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_NO_PASSWORD = "the key is encrypted; give --ssl-keyfile-password"


class Tls:
    """Owns the context that new connections are made with. Connections that are open keep what they have."""

    def __init__(self, config: TlsConfig) -> None:
        """:raises UsageError: flags do not fit each other. :raises StartupError: a file is no good."""
        assert config.ssl_certfile is not None, "without a certificate there is no TLS"
        self._config = config
        self._cert = config.ssl_certfile
        if config.ssl_cert_reqs != "none" and config.ssl_ca_certs is None:
            raise UsageError(
                f"--ssl-cert-reqs {config.ssl_cert_reqs}: say with --ssl-ca-certs whose certificates are good"
            )
        if config.ssl_cert_reqs == "none" and config.ssl_ca_certs is not None:
            raise UsageError(
                "--ssl-ca-certs has no effect unless --ssl-cert-reqs is optional or required (mTLS)"
            )
        self.context = self._new_context()

    @property
    def paths(self) -> tuple[str, ...]:
        """Files to call :meth:`read` for when they change."""
        return (self._cert,) if self._config.ssl_keyfile is None else (self._cert, self._config.ssl_keyfile)

    def read(self) -> None:
        """Give new connections the certificate that is there now.

        :raises StartupError: it is no good; the old one stays.
        """
        # A context that a pair failed on is left half changed: tried on another one first.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load(self.context)

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = _VERIFY[self._config.ssl_cert_reqs]
        self._load(context)
        authorities, ciphers = self._config.ssl_ca_certs, self._config.ssl_ciphers
        if authorities is not None:
            try:
                context.load_verify_locations(authorities)
            except OSError as error:
                raise StartupError(f"--ssl-ca-certs {authorities}: {_why(error)}") from error
        if ciphers is not None:
            try:
                context.set_ciphers(ciphers)
            except ssl.SSLError as error:
                raise StartupError(f"--ssl-ciphers {ciphers}: OpenSSL knows none of them") from error
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        cert, key = self._cert, self._config.ssl_keyfile
        _check_readable("--ssl-certfile", cert)
        if key is not None:
            _check_readable("--ssl-keyfile", key)
        where = f"--ssl-certfile {cert}" + ("" if key is None else f", --ssl-keyfile {key}")
        encrypted = False

        def password() -> str:
            """Asked for an encrypted key; OpenSSL would ask at the terminal."""
            nonlocal encrypted
            encrypted = True
            return self._config.ssl_keyfile_password or ""

        try:
            context.load_cert_chain(cert, key, password=password)
        except OSError as error:
            why = _why(error)
            if encrypted:
                given = self._config.ssl_keyfile_password is not None
                why = "--ssl-keyfile-password is not the key's" if given else _NO_PASSWORD
            raise StartupError(f"{where}: {why}") from error


def _check_readable(flag: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise StartupError(f"{flag} {path}: {error.strerror}") from error


def _why(error: OSError) -> str:
    """An error of OpenSSL's in words that help."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    match error.reason:
        case "KEY_VALUES_MISMATCH" | "NO_CERTIFICATE_ASSIGNED":
            return "the key is not the certificate's"
        case None | "NO_START_LINE":
            return "it holds no certificate or key in PEM form"
        case reason:
            return f"OpenSSL does not take it ({reason.lower().replace('_', ' ')})"

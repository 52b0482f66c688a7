"""TLS: what its flags mean, and certificates that change while the server runs."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llmkit.config import Config, TlsConfig
from llmkit.errors import StartupError, UsageError
from llmkit.server.files import WatchedFiles
from llmkit.server.run import run
from llmkit.server.tls import Tls
from tests.core.server.certificates import PASSWORD, Authority
from tests.core.server.local_front import LocalFront, plugins_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsConfig:
    """A configuration whose files a test may change."""
    issued = authority.issue("first")
    shutil.copy(issued.cert, tmp_path / "cert.pem")
    shutil.copy(issued.key, tmp_path / "key.pem")
    return TlsConfig(ssl_certfile=str(tmp_path / "cert.pem"), ssl_keyfile=str(tmp_path / "key.pem"))


def shown(tls: Tls, authority: Authority, client_cert: Any = None) -> str:
    """The common name of the certificate that a new connection gets. :raises OSError: it gets none."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client_cert is not None:
        context.load_cert_chain(client_cert.cert, client_cert.key)
    with (
        accepting(tls.context) as port,
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        assert secured.recv(1) == b"!"
        subject: Any = (secured.getpeercert() or {})["subject"]
        return str(dict(pair for entry in subject for pair in entry)["commonName"])


@contextmanager
def accepting(context: ssl.SSLContext) -> Iterator[int]:
    """A server of one connection, which gets one byte once it is secured."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        secured.sendall(b"!")
                except OSError:
                    pass  # the client hears of it too

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_a_certificate_that_changed_is_shown_to_new_connections(
    files: TlsConfig, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Tls(files)
    watched = WatchedFiles(tls.paths, tls.read)
    assert shown(tls, authority) == "first"
    second = authority.issue("second")
    shutil.copy(second.cert, tls.paths[0])
    watched.poll()  # the key is still the old one's
    assert "not the certificate's" in caplog.text
    assert shown(tls, authority) == "first"
    shutil.copy(second.key, tls.paths[1])
    watched.poll()
    assert shown(tls, authority) == "second"
    Path(tls.paths[1]).write_text("nonsense")
    watched.poll()
    assert shown(tls, authority) == "second"
    Path(tls.paths[0]).unlink()
    watched.poll()
    assert shown(tls, authority) == "second"
    assert caplog.text.count("stays in force") == 3


@pytest.mark.parametrize(("required", "without"), [("required", False), ("optional", True)])
def test_a_client_may_have_to_show_a_certificate(
    files: TlsConfig, authority: Authority, tmp_path: Path, required: str, without: bool
) -> None:
    tls = Tls(replace(files, ssl_ca_certs=str(authority.cert), ssl_cert_reqs=required))
    assert shown(tls, authority, authority.issue("client")) == "first"
    if without:
        assert shown(tls, authority) == "first"
    else:
        with pytest.raises(OSError):  # noqa: PT011 - how it shows is OpenSSL's and the system's
            shown(tls, authority)
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").issue("client")
    with pytest.raises(OSError):  # noqa: PT011
        shown(tls, authority, foreign)


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    locked = authority.issue("locked", password=PASSWORD)
    config = TlsConfig(ssl_certfile=str(locked.cert), ssl_keyfile=str(locked.key))
    with pytest.raises(StartupError, match="give --ssl-keyfile-password"):
        Tls(config)
    with pytest.raises(StartupError, match="--ssl-keyfile-password is not the key") as refused:
        Tls(replace(config, ssl_keyfile_password="haddock"))
    assert "haddock" not in str(refused.value)
    assert shown(Tls(replace(config, ssl_keyfile_password=PASSWORD)), authority) == "locked"


def test_bad_files_are_one_line(files: TlsConfig, authority: Authority, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing here")
    other = authority.issue("other")
    for changes, said in (
        ({"ssl_certfile": str(tmp_path / "gone.pem")}, "--ssl-certfile .*gone.pem: No such file"),
        ({"ssl_keyfile": str(tmp_path / "gone.key")}, "--ssl-keyfile .*gone.key: No such file"),
        ({"ssl_certfile": str(nonsense)}, "no certificate or key in PEM form"),
        ({"ssl_keyfile": str(other.key)}, "the key is not the certificate's"),
        ({"ssl_ca_certs": str(nonsense), "ssl_cert_reqs": "required"}, "--ssl-ca-certs .*nonsense"),
        ({"ssl_ciphers": "none-such"}, "--ssl-ciphers none-such"),
    ):
        with pytest.raises(StartupError, match=said) as refused:
            Tls(replace(files, **changes))  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (TlsConfig(ssl_keyfile="k.pem"), "--ssl-keyfile needs --ssl-certfile"),
        (TlsConfig(ssl_cert_reqs="required"), "--ssl-cert-reqs needs --ssl-certfile"),
        (TlsConfig(ssl_certfile="c.pem", ssl_cert_reqs="optional"), "--ssl-ca-certs"),
        (TlsConfig(ssl_certfile="c.pem", ssl_ca_certs="ca.pem"), "no effect unless --ssl-cert-reqs"),
    ],
    ids=["key", "reqs", "no-ca", "ca-alone"],
)
async def test_flags_that_do_not_fit_each_other_are_refused(config: TlsConfig, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(LocalFront(), plugins_of(), replace(Config(), tls=config))


@pytest.mark.parametrize("proxies", [("10.0.0.1/8",), ("proxy",), ("*", "10.0.0.1"), ("",)])
async def test_a_proxy_is_an_address_a_network_or_everybody(proxies: tuple[str, ...]) -> None:
    config = Config()
    config = replace(config, server=replace(config.server, forwarded_allow_ips=proxies))
    with pytest.raises(UsageError, match="--forwarded-allow-ips"):
        run(LocalFront(), plugins_of(), config)

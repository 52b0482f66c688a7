"""The listening socket, bound before anything slow so that a taken port is known at once."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import stat
from contextlib import suppress

from llmkit.config import ServerConfig
from llmkit.errors import StartupError

logger = logging.getLogger(__name__)

BACKLOG = 2048


class Listener:
    """Bound and listening sockets, the URL of the first, and the file behind it if it is a Unix socket.

    A host name that has several addresses, as ``localhost`` may have, is listened to on each.
    """

    def __init__(self, config: ServerConfig, *, secure: bool = False) -> None:
        """:raises StartupError: the address cannot be had, with the flag to change."""
        self._path = config.uds
        if config.uds is not None:
            self.sockets = [_bind_unix(config.uds)]
            self.url = f"unix:{config.uds}"
            return
        self.sockets = _bind_tcp(config.host, config.port)
        address, port = self.sockets[0].getsockname()[:2]
        host = f"[{address}]" if self.sockets[0].family == socket.AF_INET6 else address
        self.url = f"{'https' if secure else 'http'}://{host}:{port}"
        if not all(map(_is_loopback, self.sockets)) and not config.needs_key:
            logger.warning(
                "listening on %s without an API key: whoever reaches it can use it. Set --api-key or "
                "--api-key-file, or --host 127.0.0.1",
                self.url,
            )

    def close(self) -> None:
        """Stop listening and remove the Unix socket's file; idempotent."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None
        for listener in self.sockets:
            listener.close()


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
    """On every address of ``host`` that this machine has, IPv4 first, all with one port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartupError(f"--host {host}: {error.strerror}") from error
    addresses = sorted({(family, address) for family, *_, address in found})
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, (address, _, *scope) in addresses:
        try:
            # Port 0 takes a free one, the same for all.
            taken = listeners[0].getsockname()[1] if listeners else port
            listeners.append(_bind_address(family, (address, taken, *scope), only_v6=len(addresses) > 1))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = error  # a name may have an address of a family that is switched off here
                continue
            for listener in listeners:
                listener.close()
            raise StartupError(_why_not(host, port, error)) from error
    if missing is not None and not listeners:
        raise StartupError(_why_not(host, port, missing)) from missing
    return listeners


def _bind_address(family: int, address: tuple[object, ...], *, only_v6: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and only_v6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _why_not(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"--port {port}: {host}:{port} is in use by another program; stop it or choose another port"
            )
        case errno.EACCES:
            return f"--port {port}: this user may not listen on {host}:{port}; ports below 1024 need a right"
        case errno.EADDRNOTAVAIL:
            return f"--host {host}: no interface of this machine has this address"
        case _:
            return f"cannot listen on {host}:{port}: {error.strerror}"


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(f"--uds {path}: cannot listen there: {error.strerror or error}") from error
    except StartupError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket file of a server that is gone; leave everything else alone."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"--uds {path}: there is a file that is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise StartupError(f"--uds {path}: another program listens there; stop it or choose another path")

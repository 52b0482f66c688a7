"""Certificates for tests, made by the ``openssl`` program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "swordfish"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A CA that issues certificates into a directory of its own."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("certificates for tests are made by the openssl program, which is not here")
        self._directory = directory
        self.cert = self._issue("ca", "/CN=a test CA").cert

    def issue(self, name: str, *, password: str | None = None) -> Issued:
        """For 127.0.0.1 and localhost; ``name`` is its common name, and is in its file names."""
        by = ["-CA", str(self.cert), "-CAkey", str(self._directory / "ca.key")]
        return self._issue(name, f"/CN={name}", *by, password=password)

    def _issue(self, name: str, subject: str, *more: str, password: str | None = None) -> Issued:
        made = Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        lock = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
        files = ["-keyout", str(made.key), "-out", str(made.cert)]
        command = ["openssl", "req", "-x509", *kind, "-subj", subject, *names, *more, *lock, *files]
        subprocess.run([*command, "-days", "2"], check=True, capture_output=True)
        return made

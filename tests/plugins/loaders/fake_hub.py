"""Just enough of the Hugging Face hub, on a local port, to fetch a repository from.

Run as a program: serves the files of a directory as ``org/repo`` and prints its port.
"""

from __future__ import annotations

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/repo"


class Hub(BaseHTTPRequestHandler):
    root: Path

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        print(self.command, self.path, file=sys.stderr)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        files = sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())
        _, _, name = path.removeprefix(f"/{REPO}/resolve/").partition("/")
        if path.startswith(f"/api/models/{REPO}/tree/"):
            self._send(json.dumps([self._entry(file) for file in files]).encode(), with_body)
        elif path.startswith(f"/api/models/{REPO}"):
            info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
            self._send(json.dumps(info).encode(), with_body)
        elif path.startswith(f"/{REPO}/resolve/") and name in files:
            self._send((self.root / name).read_bytes(), with_body)
        else:
            self._send(b'{"error":"Repository not found"}', with_body, status=404, error="RepoNotFound")

    def _entry(self, name: str) -> dict[str, object]:
        data = (self.root / name).read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def _send(self, body: bytes, with_body: bool, status: int = 200, error: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


if __name__ == "__main__":
    Hub.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    print(server.server_address[1], flush=True)
    server.serve_forever()

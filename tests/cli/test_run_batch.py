"""``llmkit run-batch``: files in OpenAI's batch format, whatever is in them and whatever happens."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.errors import EngineError, UsageError
from llmkit.testing import bytes_tokenizer
from llmkit_cli.batch import run
from llmkit_cli.batch.lines import Line, check_ids, read_lines
from llmkit_cli.batch.output import Output, answered, refused

COMMAND = [sys.executable, "-m", "llmkit_cli.main", "run-batch"]


def request(name: str, prompt: str = "ab", **fields: Any) -> dict[str, Any]:
    line = {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
    return line | fields


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def answers(path: Path) -> dict[str | None, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(row) == {"id", "custom_id", "response", "error"} for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["custom_id"]: row for row in rows}


def engine(directory: Path, script: dict[str, Any] | None = None) -> list[str]:
    (directory / "script.json").write_text(json.dumps(script or {}))
    return [
        str(bytes_tokenizer.write(directory / "tiny")),
        "--load-format=dummy",
        "--plugin=llmkit.testing.scripted",
        f"--plugin-option=llmkit.testing.scripted.script={directory / 'script.json'}",
        "--executor=scripted",
    ]


# ---- lines ----


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1 is no JSON"),
        ('{"custom_id": "a", "custom_id": "b"}', "the key 'custom_id' is there twice"),
        ('{"custom_id": "a", "body": {"temperature": NaN}}', "NaN is no number"),
        ("[" * 100_000, "line 1 is no JSON"),
        ("[]", "no object with a custom_id"),
        ({"custom_id": 3}, "no object with a custom_id"),
        (request("a", method="GET"), "method is 'GET'"),
        (request("a", url="/v1/models"), "url is '/v1/models'; it must be one of /v1/chat"),
        (request("a", url=["x"]), "url is ['x']"),
        (request("a", body=[]), "body must be an object"),
        (request("a", body={"prompt": "a", "stream": True}), "body.stream is true"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(tmp_path: Path, line: Any, says: str) -> None:
    (read,) = read_lines(write(tmp_path / "in.jsonl", line))
    assert says in (read.fault or "")


def test_blank_lines_are_passed_over_and_numbers_stay(tmp_path: Path) -> None:
    lines = [*read_lines(write(tmp_path / "in.jsonl", "", request("a"), "  ", request("b")))]
    assert [(line.number, line.custom_id, line.fault) for line in lines] == [(2, "a", None), (4, "b", None)]


def test_no_two_requests_have_one_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lines 1 and 3 have the same custom_id 'a'"):
        check_ids(write(tmp_path / "in.jsonl", request("a"), request("b"), request("a")))


# ---- output ----


def test_a_cut_last_line_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = json.dumps(answered(Line(1, "a"), 200, "r", {})) + "\n"
    path.write_text(whole + whole.replace('"a"', '"b"')[:-9])
    with Output(path, resume=True) as output:
        assert output.done == {"id a"}
    assert path.read_text() == whole


def test_answers_are_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "out.jsonl", answered(Line(1, "a"), 200, "r", {}))
    with pytest.raises(UsageError, match="--resume"):
        Output(path, resume=False)
    with pytest.raises(UsageError, match="line 2 is no answer"):
        Output(write(path, answered(Line(1, "a"), 200, "r", {}), "[]"), resume=True)


async def test_lines_without_a_name_are_answered_once(tmp_path: Path) -> None:
    line = Line(7, None, fault="it is no JSON")
    with Output(tmp_path / "out.jsonl", resume=False) as output:
        await asyncio.gather(*(output.write(Line(n, f"{n}"), answered(line, 200, "", 0)) for n in range(5)))
        await output.write(line, refused(line, "it is no JSON"))
    with Output(tmp_path / "out.jsonl", resume=True) as output:
        assert line.key in output.done
        assert output.failed == 1


# ---- a server ----


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PAUSE_S", 0.0)


async def test_a_full_server_is_asked_again(tmp_path: Path, hurried: None) -> None:
    asked: list[int] = []

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(0)
        return httpx.Response(429 if len(asked) < 3 else 200, json={"n": len(asked)})

    path = tmp_path / "out.jsonl"
    client = httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://x")
    with Output(path, resume=False) as output:
        await run.run_batch(client, iter([Line(1, "a", "/score", {})]), output, 2, lambda: None)
    assert answers(path)["a"]["response"]["body"] == {"n": 3}


async def test_a_server_that_is_gone_ends_the_run_and_leaves_no_answer(tmp_path: Path, hurried: None) -> None:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(503)), base_url="http://x"
    )
    with (
        Output(tmp_path / "out.jsonl", resume=False) as output,
        pytest.raises(EngineError, match="takes no requests"),
    ):
        await run.run_batch(client, iter([Line(1, "a", "/score", {})]), output, 2, lambda: None)
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_a_batch_is_answered_and_one_bad_line_fails_alone(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    path = write(
        tmp_path / "in.jsonl",
        request("plain", "hello"),
        request("chat", url="/v1/chat/completions", body=chat),
        request("wrong", body={"prompt": "a", "temperature": "hot"}),
        request("stream", body={"prompt": "a", "stream": True}),
        request("responses", url="/v1/responses", body={"input": "hi", "max_output_tokens": 16}),
        request("embeddings", url="/v1/embeddings", body={"input": "hi"}),
        "{not json",
    )
    out = tmp_path / "out.jsonl"
    command = [*COMMAND, *engine(tmp_path), "-i", str(path), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "3 of 7 requests succeeded" in done.stderr
    got = answers(out)
    assert got["plain"]["response"]["body"]["choices"][0]["text"] == "hello"
    assert got["plain"]["response"]["request_id"]
    assert got["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "use"
    assert got["responses"]["response"]["status_code"] == 200
    assert got["wrong"]["response"]["status_code"] == 400
    assert got["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    assert got["embeddings"]["response"]["status_code"] == 400
    assert got["stream"]["error"]["code"] == "invalid_line"
    assert "line 7" in got[None]["error"]["message"]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(60)]
    path = write(tmp_path / "in.jsonl", *(request(name, f"prompt of {name}") for name in names))
    out = tmp_path / "out.jsonl"
    script = {"rules": [{"match": "prompt of r59", "text": "last", "delay_ms": 30}]}
    command = [*COMMAND, *engine(tmp_path, script), "-i", str(path), "-o", str(out), "--concurrency=4"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not (out.exists() and out.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline
        assert first.poll() is None or out.read_bytes().count(b"\n") >= 5
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = out.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    out.write_bytes(kept + b'{"id": "batch_req_cut", "custom_id": "r')
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(kept), "what was answered is answered again"
    got = answers(out)
    assert sorted(got, key=str) == sorted(names)
    assert out.read_bytes().count(b"\n") == len(names)
    assert got["r3"]["response"]["body"]["choices"][0]["text"] == "prompt of r3"

"""``tokenize`` and ``detokenize``: text, file and standard input; no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

NO_WEIGHTS = ("--load-format", "dummy")


def test_tokenize_and_back_from_argument_file_and_stdin(llmkit: Run, model: str, tmp_path: Path) -> None:
    text = "né 🎉\n"
    file = tmp_path / "text"
    file.write_text(text)
    ids = " ".join(str(byte) for byte in text.encode())
    assert llmkit("tokenize", model, *NO_WEIGHTS, text).stdout.strip() == ids
    assert llmkit("tokenize", model, *NO_WEIGHTS, "--file", str(file)).stdout.strip() == ids
    assert llmkit("tokenize", model, *NO_WEIGHTS, stdin=text).stdout.strip() == ids
    assert llmkit("detokenize", model, *NO_WEIGHTS, *ids.split()).stdout == text + "\n"
    assert llmkit("detokenize", model, *NO_WEIGHTS, stdin=f"[{ids.replace(' ', ', ')}]").stdout == text + "\n"
    assert json.loads(llmkit("detokenize", model, *NO_WEIGHTS, "--json", stdin=ids).stdout) == {"text": text}


def test_outputs(llmkit: Run, model: str) -> None:
    assert llmkit("tokenize", model, *NO_WEIGHTS, "ab", "-o", "count").stdout == "2\n"
    assert llmkit("tokenize", model, *NO_WEIGHTS, "ab", "-o", "pieces").stdout == "97\t'a'\n98\t'b'\n"
    shown = json.loads(llmkit("tokenize", model, *NO_WEIGHTS, "ab", "-o", "json").stdout)
    assert shown == {"count": 2, "tokens": [97, 98], "pieces": ["a", "b"]}
    assert "ab" in llmkit("tokenize", model, *NO_WEIGHTS, "ab", "-o", "colours").stdout


def test_chat_renders_messages_and_tools(llmkit: Run, model: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    shown = llmkit("tokenize", model, *NO_WEIGHTS, "--chat", json.dumps(messages), "-o", "ids")
    assert shown.returncode == 0, shown.stderr
    rendered = llmkit("detokenize", model, *NO_WEIGHTS, stdin=shown.stdout).stdout
    assert "hi" in rendered
    assert "assistant" in rendered
    closed = llmkit(
        "tokenize", model, *NO_WEIGHTS, "--chat", "--no-generation-prompt", json.dumps(messages)
    ).stdout
    assert len(closed.split()) < len(shown.stdout.split())
    assert (
        llmkit(
            "tokenize", model, *NO_WEIGHTS, "--chat", json.dumps({"messages": messages, "tools": []})
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["tokenize", "--chat", "not json"], "no JSON", id="chat-no-json"),
        pytest.param(["tokenize", "--chat", '{"a": 1}'], "messages", id="chat-no-messages"),
        pytest.param(["tokenize", "--file", "/nosuch"], "/nosuch", id="no-file"),
        pytest.param(["detokenize", "99999999"], "no token id", id="id-too-large"),
        pytest.param(["detokenize", "-o"], "", id="flag-of-the-other-command"),
        pytest.param(["detokenize", "x1"], "no token id", id="no-number"),
    ],
)
def test_bad_input_is_exit_code_2(llmkit: Run, model: str, words: list[str], said: str) -> None:
    ended = llmkit(words[0], model, *NO_WEIGHTS, *words[1:])
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["tokenize", "MODEL", *NO_WEIGHTS, "a"],
        ["detokenize", "MODEL", *NO_WEIGHTS, "97"],
        ["plugins", "list"],
    ],
)
def test_no_torch_and_no_transformers(model: str, words: list[str]) -> None:
    words = [model if word == "MODEL" else word for word in words]
    check = (
        "import sys\nfrom llmkit_cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'numba', 'fastapi'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


def test_an_argument_that_is_no_text_is_one_line(llmkit: Run, model: str) -> None:
    ended = llmkit("tokenize", model, *NO_WEIGHTS, "caf\udce9")
    assert ended.returncode == 2
    assert "not UTF-8" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_output_that_takes_nothing_is_one_line(model: str) -> None:
    command = [sys.executable, "-m", "llmkit_cli.main", "tokenize", model, *NO_WEIGHTS, "a"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert "No space left" in ended.stderr


def test_a_closed_standard_input_is_an_empty_one(model: str) -> None:
    command = f"{sys.executable} -m llmkit_cli.main tokenize {model} {' '.join(NO_WEIGHTS)} -o count <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")

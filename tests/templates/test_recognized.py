"""``auto`` takes published templates for what they write."""

from __future__ import annotations

import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import ParserHints
from llmkit.plugins import load_plugins
from llmkit.registry import Registry
from llmkit_tool_parsers.plugin import OTHER_NAMES
from tests.templates.fetch import TEMPLATES
from tests.templates.round_trip import Published
from tests.templates.test_round_trip import PUBLISHED

MODEL_TYPES = {
    "granite": "granite",
    "granite4": "granitemoehybrid",
    "granite_20b_fc": "gpt_bigcode",
    "hunyuan_a13b": "hunyuan_v1_moe",
    "lfm2": "lfm2_moe",
    "llama3_json": "llama",
}
"""Where the template alone does not tell; as in config.json."""
TOKENS = {"llama3_json": frozenset({"<|python_tag|>"})}
"""Special tokens of the model that not every template of the format has."""
ONLY_BY_NAME = frozenset({"llama4_json", "llama4_pythonic", "pythonic", "xlam"})
"""Templates that somebody tells a model to write so with."""
TOLD = [each for each in PUBLISHED if each.tools not in {*ONLY_BY_NAME, *OTHER_NAMES}]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins(PluginConfig()).registry


@pytest.mark.parametrize("published", TOLD, ids=str)
def test_a_published_template_is_recognized(published: Published, registry: Registry) -> None:
    path = TEMPLATES / f"{published.template}.jinja"
    if not path.is_file():
        pytest.skip(f"no {path}; `make templates` fetches it")
    template = path.read_text(encoding="utf-8")
    name = published.tools
    hints = ParserHints(template, TOKENS.get(name, frozenset()), MODEL_TYPES.get(name, ""))
    choice = registry.recognized("tool_parser", "auto", hints)
    assert choice is not None
    # Mistral's reader takes both generations; a model of the first is held to its own.
    first = name == "mistral" and "[ARGS]" not in template
    assert choice.name == ("mistral_list" if first else name)

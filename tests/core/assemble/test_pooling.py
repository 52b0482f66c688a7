"""What a model is for, and how it pools, told by its config."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.assemble.pooling import resolve_runner, with_room_for_prompts
from llmkit.config import sources
from llmkit.contracts import CheckpointInfo, PoolingSpec
from llmkit.errors import UsageError

LABELS = {"id2label": {"0": "bad", "1": "good"}}


def resolved(
    architecture: str, pooling: PoolingSpec | None = None, /, flags: Any = None, **config: Any
) -> Any:
    info = CheckpointInfo(architecture, config, pooling=pooling)
    return resolve_runner(sources.load(flags or {}, {}).config, info)


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "SomethingNew"],
)
def test_what_generates(architecture: str) -> None:
    assert resolved(architecture).pooling is None


@pytest.mark.parametrize(
    ("architecture", "config", "expected"),
    [
        ("BertModel", {"model_type": "bert"}, ("cls", "none", "none", ())),
        ("BertForMaskedLM", {"model_type": "bert"}, ("cls", "none", "none", ())),
        ("Qwen3Model", {"model_type": "qwen3", "num_key_value_heads": 2}, ("last", "none", "none", ())),
        ("BertForSequenceClassification", LABELS, ("cls", "sequence", "softmax", ("bad", "good"))),
        (
            "BertForSequenceClassification",
            {"id2label": {"0": "LABEL_0"}},
            ("cls", "sequence", "sigmoid", ("LABEL_0",)),
        ),
        (
            "BertForSequenceClassification",
            LABELS | {"problem_type": "multi_label_classification"},
            ("cls", "sequence", "sigmoid", ("bad", "good")),
        ),
        (
            "BertForSequenceClassification",
            {"id2label": {"0": "x"}, "sentence_transformers": {"activation_fn": "torch.nn.Identity"}},
            ("cls", "sequence", "none", ("x",)),
        ),
        (
            "ModernBertForSequenceClassification",
            LABELS | {"classifier_pooling": "mean"},
            ("mean", "sequence", "softmax", ("bad", "good")),
        ),
        (
            "LlamaForSequenceClassification",
            LABELS | {"num_key_value_heads": 2},
            ("last", "sequence", "softmax", ("bad", "good")),
        ),
        ("BertForTokenClassification", LABELS, ("cls", "token", "softmax", ("bad", "good"))),
    ],
)
def test_what_pools_and_how(architecture: str, config: dict[str, Any], expected: tuple[Any, ...]) -> None:
    spec = resolved(architecture, **config).pooling
    assert (spec.type, spec.head, spec.activation, spec.labels) == expected


def test_sentence_transformers_files_say_so_of_any_model() -> None:
    spec = PoolingSpec("last", max_length=99)
    found = resolved("Qwen3ForCausalLM", spec, hidden_size=48, max_position_embeddings=512)
    assert (found.pooling.type, found.pooling.size, found.context_length) == ("last", 48, 99)


def test_roberta_has_fewer_positions_than_its_table() -> None:
    found = resolved("RobertaModel", model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert found.context_length == 512


def test_flags_win() -> None:
    assert resolved("LlamaForCausalLM", flags={"runner": "pooling"}).pooling.type == "last"
    assert resolved("BertModel", flags={"runner": "generate"}).pooling is None
    given = {"pooling_type": "MEAN", "normalize": False, "dimensions": [8, 16]}
    spec = resolved("BertModel", flags={"pooler_config": given}).pooling
    assert (spec.type, spec.normalize, spec.matryoshka, spec.dimensions) == ("mean", False, True, (8, 16))
    for wrong in ({"normalize": 1}, {"dimensions": [0]}, {"pooling_type": "ALL"}, {"softmax": True}):
        with pytest.raises(UsageError, match="--pooler-config"):
            resolved("BertModel", flags={"pooler_config": wrong})
    with pytest.raises(UsageError, match="this model generates"):
        resolved("LlamaForCausalLM", flags={"pooler_config": given})


def test_steps_hold_the_longest_prompt_that_is_computed_whole() -> None:
    config = sources.load({"max_num_batched_tokens": 64}, {}).config
    for kind, budget in (("mean", 512), ("last", 64)):
        info = CheckpointInfo("X", {"max_position_embeddings": 512}, pooling=PoolingSpec(kind))
        assert with_room_for_prompts(config, info).scheduler.max_num_batched_tokens == budget

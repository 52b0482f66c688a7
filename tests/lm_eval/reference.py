"""The items, and what transformers chooses: what lm-eval computes, without llmkit and without lm-eval."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from llmkit.assemble.model import open_frontend, open_model
from llmkit.config import Config, ModelConfig
from llmkit.contracts import Tokenizer
from llmkit.plugins import load_plugins
from tests.parity.transformers_llama import transformers_llama

MODEL = "smollm2-135m"
ITEMS = Path(__file__).with_name("items.jsonl")
QUESTION = "Question: {question}\nAnswer:"
"""As lm-eval's own multiple-choice tasks ask; a choice follows after a space."""


@dataclass(frozen=True)
class Item:
    """A question, and each choice as the ids that follow the question's."""

    question: list[int]
    choices: list[list[int]]


def items(tokenizer: Tokenizer) -> list[Item]:
    """All 100. A choice's ids are those of question and choice together behind the question's."""
    made = []
    for line in ITEMS.read_text().splitlines():
        item = json.loads(line)
        text = QUESTION.format(question=item["question"])
        question = tokenizer.encode(text)
        wholes = [tokenizer.encode(f"{text} {choice}") for choice in item["choices"]]
        made.append(Item(question, [whole[len(question) :] for whole in wholes]))
    return made


class Reference:
    """The model in transformers, in single precision."""

    def __init__(self) -> None:
        config = Config(model=ModelConfig(model=MODEL))
        registry = load_plugins(config.plugins).registry
        opened = open_model(config, registry, lambda phase, fraction: None)
        self.tokenizer = open_frontend(config, opened, registry).tokenizer
        self._model: Any = transformers_llama(opened, registry, torch.float32)

    @torch.inference_mode()
    def scores(self, item: Item) -> list[float]:
        """The summed logprob of each choice."""
        wholes = [item.question + choice for choice in item.choices]
        longest = max(map(len, wholes))
        ids = torch.tensor([whole + [0] * (longest - len(whole)) for whole in wholes])  # padding is not seen
        logprobs = self._model(ids, use_cache=False).logits.log_softmax(-1)
        start = len(item.question) - 1
        return [
            sum(float(row[start + place, token]) for place, token in enumerate(choice))
            for row, choice in zip(logprobs, item.choices, strict=True)
        ]


def chosen(scores: list[float]) -> int:
    """The likeliest choice."""
    return max(range(len(scores)), key=scores.__getitem__)

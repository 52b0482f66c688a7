"""A tiny cross-encoder behind every pooling route, and what models of the other kind answer."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from llmkit.testing import tiny
from llmkit.testing.http import ServerProcess

ARCHITECTURE = "BertForSequenceClassification"
WORDS = "a cat sat on the mat while dogs barked at red cars in rain".split()
DOCUMENTS = ["a cat sat", "dogs barked at red cars", "rain on the mat", "cat", "red red red"]
ROUTES = (
    "/v1/embeddings",
    "/pooling",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/classify",
)
BODIES: dict[str, dict[str, Any]] = {
    "score": {"text_1": "a", "text_2": "b"},
    "rerank": {"query": "a", "documents": ["b"]},
}


def body_of(route: str) -> dict[str, Any]:
    return BODIES.get(route.rpartition("/")[2], {"input": "a"})


def write_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """Words, and pairs as BERT has them: the second text is of the second kind."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {token: index for index, token in enumerate([*special, *WORDS])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(special)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.save(str(directory / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny.build(tmp_path_factory.mktemp("cross-encoder"), ARCHITECTURE, pad_token_id=0)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def pooling(encoder: Path) -> Iterator[httpx.Client]:
    flags = ["--served-model-name=judge", "--enable-admin-routes", "--max-num-seqs=8"]
    with (
        ServerProcess([str(encoder), *flags]) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        yield http


def direct(encoder: Path, first: str, second: str) -> float:
    """The head's logit for a pair, through transformers."""
    pair = tokenizers.Tokenizer.from_file(str(encoder / "tokenizer.json")).encode(first, second)
    assert 1 in pair.type_ids
    model = tiny.make(ARCHITECTURE, pad_token_id=0)
    with torch.no_grad():
        output = model(torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids]))
    return float(output.logits[0, 0])


def post(http: httpx.Client, route: str, **body: Any) -> Any:
    answer = http.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(http: httpx.Client, route: str, **body: Any) -> dict[str, Any]:
    answer = http.post(route, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_scores_and_ranks_are_the_heads(pooling: httpx.Client, encoder: Path) -> None:
    query = "a cat on the mat"
    logits = [direct(encoder, query, document) for document in DOCUMENTS]
    raw = post(pooling, "/score", text_1=query, text_2=DOCUMENTS, use_activation=False)
    assert [item["score"] for item in raw["data"]] == pytest.approx(logits, abs=1e-4)
    alone = [
        post(pooling, "/v1/score", queries=query, documents=document)["data"][0]["score"]
        for document in DOCUMENTS
    ]
    assert alone == pytest.approx([float(torch.tensor(x).sigmoid()) for x in logits], abs=1e-5)
    pairs = post(pooling, "/score", data_1=DOCUMENTS, data_2=DOCUMENTS[::-1])
    assert len(pairs["data"]) == len(DOCUMENTS)
    order = sorted(range(len(logits)), key=lambda index: -logits[index])
    ranked = post(pooling, "/rerank", query=query, documents=[{"text": d} for d in DOCUMENTS], top_n=3)
    assert [result["index"] for result in ranked["results"]] == order[:3]
    assert [result["document"]["text"] for result in ranked["results"]] == [DOCUMENTS[i] for i in order[:3]]
    cohere = post(pooling, "/v2/rerank", model="judge", query=query, documents=DOCUMENTS)
    assert [set(result) for result in cohere["results"]] == [{"index", "relevance_score"}] * len(DOCUMENTS)
    assert len(post(pooling, "/v1/rerank", query=query, documents=DOCUMENTS, top_n=0)["results"]) == 5


def test_a_single_label_is_classified(pooling: httpx.Client) -> None:
    answer = post(pooling, "/classify", input=["a cat", "dogs"])
    assert [item["num_classes"] for item in answer["data"]] == [1, 1]
    assert answer["data"][0]["label"] == "LABEL_0"
    assert 0 < answer["data"][0]["probs"][0] < 1
    pooled = post(pooling, "/pooling", input=["a cat", "dogs"], task="classify")
    assert [item["data"] for item in pooled["data"]] == [item["probs"] for item in answer["data"]]
    assert answer["usage"]["prompt_tokens"] == 4 + 3


def test_long_pairs_are_cut_to_what_fits(pooling: httpx.Client) -> None:
    long = "cat " * 400
    error = refusal(pooling, "/rerank", query="a", documents=["b", long])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    cut = post(pooling, "/rerank", query="a", documents=["b", long], truncate_prompt_tokens=20)
    assert cut["usage"]["prompt_tokens"] == 5 + 20


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("/v1/embeddings", {"input": "x"}, "model"),
        ("/pooling", {"input": "x", "task": "embed"}, "model"),
        ("/pooling", {"input": "x", "task": "dream"}, "task"),
        ("/pooling", {"input": []}, "input"),
        ("/pooling", {"input": [[1], "x"] * 1025}, "input"),
        ("/pooling", {"input": ["x", 3]}, "input[1]"),
        ("/pooling", {"input": ["x", [1, 99999]]}, "input[1][1]"),
        ("/pooling", {"input": "x", "dimensions": 8}, "dimensions"),
        ("/pooling", {"input": "x", "prompt_name": "query"}, "prompt_name"),
        ("/pooling", {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/pooling", {"input": "x", "truncate_prompt_tokens": 100000}, "truncate_prompt_tokens"),
        ("/pooling", {"input": "x", "priority": 2}, "priority"),
        ("/pooling", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/pooling", {"input": "x", "messages": [{"role": "user", "content": "x"}]}, "input"),
        ("/classify", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/v1/completions", {"prompt": "a"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model"),
    ],
)
def test_what_is_wrong_is_named(
    pooling: httpx.Client, route: str, fields: dict[str, Any], param: str
) -> None:
    assert refusal(pooling, route, **fields)["param"] == param


@pytest.mark.parametrize("route", ROUTES)
def test_a_model_that_generates_says_so(server: ServerProcess, route: str) -> None:
    """After the fields were looked at."""
    with httpx.Client(base_url=server.url) as http:
        error = refusal(http, route, **body_of(route))
        assert (error["param"], error["code"]) == ("model", "model_not_supported")
        assert "generates text" in error["message"]
        wrong = http.post(route, json=body_of(route) | {"truncate_prompt_tokens": "x"}).json()["error"]
        assert wrong["param"] == "truncate_prompt_tokens"


def metric(http: httpx.Client, name: str) -> float:
    (line,) = (line for line in http.get("/metrics").text.splitlines() if re.match(name, line))
    return float(line.rpartition(" ")[2])


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come to that within twenty seconds")


def test_a_client_that_leaves_leaves_nothing(pooling: httpx.Client) -> None:
    running, waiting = "llmkit:num_requests_running", "llmkit:num_requests_waiting"
    aborted = 'llmkit:request_success_total.*finished_reason="abort"'
    body = json.dumps({"input": ["cat " * 100] * 2000})
    with socket.create_connection((pooling.base_url.host, pooling.base_url.port or 80)) as connection:
        head = ["POST /pooling HTTP/1.1", "Host: x", "Content-Type: application/json"]
        head += [f"Content-Length: {len(body)}", "", body]
        connection.sendall("\r\n".join(head).encode())
        wait_until(lambda: metric(pooling, running) > 0)
    wait_until(lambda: metric(pooling, running) == metric(pooling, waiting) == 0)
    wait_until(lambda: metric(pooling, aborted) > 0)
    assert post(pooling, "/pooling", input="a cat")["data"]


def test_scores_are_the_same_after_a_sleep(pooling: httpx.Client) -> None:
    before = post(pooling, "/pooling", input=DOCUMENTS)["data"]
    for level in (1, 2):
        assert pooling.post(f"/sleep?level={level}").status_code == 200
        assert pooling.post("/pooling", json={"input": "a"}).status_code == 503
        assert pooling.post("/wake_up").status_code == 200
        assert post(pooling, "/pooling", input=DOCUMENTS)["data"] == before

"""A hundred multiple-choice questions: scored through the API, as transformers scores them.

CI asks some of them with lm-eval's own requests and arithmetic; ``make test-lm-eval`` runs lm-eval.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.testing.http import ServerProcess
from tests.lm_eval.reference import ITEMS, MODEL, QUESTION, Item, Reference, chosen, items

pytestmark = pytest.mark.model
LM_EVAL = os.environ.get("LLMKIT_TEST_LM_EVAL")
"""A Python that has lm-eval and transformers."""
MOST_APART = 0.02
"""Between summed logprobs, of weights that the default rounds to fp16."""
TASK = "llmkit_items"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess([MODEL, "--max-model-len=2048"], ready_timeout_s=240) as server:
        yield server


@pytest.mark.parametrize(
    "every", [pytest.param(30, id="4-items"), pytest.param(1, id="100-items", marks=pytest.mark.full)]
)
def test_scored_as_lm_eval_does_the_choices_are_those_of_transformers(
    server: ServerProcess, reference: Reference, every: int
) -> None:
    for item in items(reference.tokenizer)[::every]:
        wanted = reference.scores(item)
        got = score(server.url, item)
        assert got == pytest.approx(wanted, abs=MOST_APART)
        assert chosen(got) == chosen(wanted)


def score(url: str, item: Item) -> list[float]:
    """The request and the sum of lm-eval 0.4's ``local-completions``, one with all four choices."""
    wholes = [item.question + choice for choice in item.choices]
    body = {
        "model": MODEL,
        "prompt": wholes,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    scores = []
    for whole, choice in zip(wholes, choices, strict=True):
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None, "nothing comes before the first token"
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(whole) + 1
        for own, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
            assert max(top.values()) >= own
        scores.append(sum(logprobs["token_logprobs"][len(item.question) : -1]))
    return scores


@pytest.mark.skipif(LM_EVAL is None, reason="LLMKIT_TEST_LM_EVAL names no Python with lm-eval")
@pytest.mark.timeout(1200)
def test_lm_eval_itself_chooses_as_transformers(
    server: ServerProcess, reference: Reference, tmp_path: Path
) -> None:
    samples = run_lm_eval(server.url, write_tokenizer(reference, tmp_path / "tokenizer"), tmp_path)
    all_items = items(reference.tokenizer)
    assert len(samples) == len(all_items) == 100
    different = []
    for place, item in enumerate(all_items):
        got = [float(response[0]) for response in samples[place]]
        wanted = reference.scores(item)
        assert got == pytest.approx(wanted, abs=MOST_APART), place
        if chosen(got) != chosen(wanted):
            different.append(place)
    assert different == []


def run_lm_eval(url: str, tokenizer: Path, place: Path) -> dict[int, list[Any]]:
    """Number of an item -> what lm-eval got for each choice: (summed logprob, whether greedy)."""
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(ITEMS)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": QUESTION.format(question="{{question}}"),
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    }
    (place / "tasks").mkdir()
    (place / "tasks" / f"{TASK}.yaml").write_text(json.dumps(task))  # JSON is YAML
    model = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(tokenizer),
        "num_concurrent": "8",
        "max_retries": "1",
    }
    assert LM_EVAL is not None
    command = [LM_EVAL, "-m", "lm_eval", "--model", "local-completions", "--tasks", TASK, "--log_samples"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in model.items())]
    command += ["--include_path", str(place / "tasks"), "--output_path", str(place / "out")]
    environment = {**os.environ, "HF_HOME": str(place / "hf"), "NO_PROXY": "127.0.0.1"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ran = subprocess.run(
        command, env=environment | offline, capture_output=True, text=True, check=False, timeout=1000
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    (log,) = (place / "out").rglob(f"samples_{TASK}_*.jsonl")
    return {sample["doc_id"]: _responses(sample) for sample in map(json.loads, log.read_text().splitlines())}


def _responses(sample: dict[str, Any]) -> list[Sequence[Any]]:
    return [response for (response,) in sample["resps"]]


def write_tokenizer(reference: Reference, directory: Path) -> Path:
    """The model's own tokenizer, in the layout that lm-eval's transformers reads."""
    directory.mkdir()
    backend: Any = reference.tokenizer
    backend._backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {
        name: value for name, value in reference.tokenizer.special_tokens.items() if name != "unk_token"
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory

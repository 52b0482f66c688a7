"""What prompt lookup gives on prompts whose answers copy: more than 1.8 tokens a step, and the same text."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit import LLM, SamplingParams

PROMPTS = (
    """[{"id": 1, "name": "Anna", "active": true, "role": "editor"},
 {"id": 2, "name": "Boris", "active": true, "role": "editor"},
 {"id": 3, "name": "Carla", "active": true,""",
    """INSERT INTO orders (customer, item, amount) VALUES ('anna', 'pencil', 3);
INSERT INTO orders (customer, item, amount) VALUES ('boris', 'paper', 10);
INSERT INTO orders""",
    """Question: What is written on the door of room 14?
Document: The door of room 14 says: please knock twice before entering, and wait for the green light.
Answer: The door of room 14 says: please knock twice before entering, and wait for the green light.

Question: What is written on the door of room 15?
Document: The door of room 15 says: authorized staff of the chemistry laboratory only, no visitors after noon.
Answer:""",
    """2024-05-01 10:00:01 INFO server: request 1001 finished with status 200 in 12 ms
2024-05-01 10:00:02 INFO server: request 1002 finished with status 200 in 14 ms
2024-05-01 10:00:03 INFO server:""",
)
PARAMS = SamplingParams(temperature=0, max_tokens=40)


def run(**settings: Any) -> tuple[list[list[int]], Any]:
    """Each prompt's tokens, and the engine's counters."""
    with LLM("smollm2-135m", max_model_len=256, deterministic=True, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm._engine is not None
        return [output.token_ids for output in outputs], llm._engine.stats


@pytest.mark.model
def test_answers_that_copy_come_faster_and_are_the_same() -> None:
    plain, _ = run()
    tokens, stats = run(speculator="ngram")
    assert tokens == plain
    # A step gives each request one token and the drafts that were right.
    per_step = stats.generated_tokens / (stats.generated_tokens - stats.accepted_tokens)
    print(f"{per_step:.2f} tokens a step; {stats.accepted_tokens} of {stats.draft_tokens} drafts were right")
    assert per_step > 1.8

"""What a user gets for an architecture that ``native`` does not know: ``LLM`` as it configures itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmkit import LLM, EngineError, SamplingParams
from llmkit.testing import bytes_tokenizer, tiny

TIE = 1e-3
"""Gap between the two best logits of the fp64 reference under which rounding may decide."""
COUNT = 24
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
PROMPTS = [
    "Hello",
    "The keeper wrote down everything that passed: ships, storms and whales.",
    "a",
    "The keeper wrote down everything, and then the lamp went out.",
]


def model_directory(directory: Path, architecture: str, **overrides: Any) -> Path:
    """A model whose weights fp16 holds exactly, with a byte tokenizer."""
    bytes_tokenizer.write(directory)
    return tiny.build(directory, architecture, dtype="float16", **overrides)


@pytest.mark.parametrize(("architecture", "overrides"), [
    pytest.param("Gemma2ForCausalLM", {}, id="gemma2"),
    pytest.param("Gemma3ForCausalLM", {"num_key_value_heads": 1}, id="gemma3-one-kv-head"),
    pytest.param("GPT2LMHeadModel", {}, id="gpt2"),
    pytest.param("MixtralForCausalLM", {}, id="mixtral"),
])  # fmt: skip
def test_text_equals_transformers_greedy_up_to_ties(
    architecture: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    directory = model_directory(tmp_path, architecture, **overrides)
    with LLM(str(directory)) as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
        chosen = {choice.kind: choice.name for choice in llm._engine.ready.choices}
        decoded = [llm.tokenizer.decode(output.token_ids) for output in outputs]
    assert (chosen["model"], chosen["attention"]) == ("transformers", "paged-cpu")
    assert chosen["linear"] in ("fp16-weights", "packed")
    assert [output.text for output in outputs] == decoded
    for output in outputs:
        assert len(output.token_ids) == COUNT
        gap = gap_at_first_difference(directory, output.prompt_token_ids, output.token_ids)
        assert gap is None or gap < TIE


def gap_at_first_difference(directory: Path, prompt: list[int], output: list[int]) -> float | None:
    """How far apart the reference's two best logits are where its greedy choice differs first."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, attn_implementation="eager", local_files_only=True
    )
    model.set_experts_implementation("eager")  # the others know no fp64
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    for place, token in enumerate(output, start=len(prompt) - 1):
        best = logits[place].topk(2)
        if int(best.indices[0]) != token:
            return float(best.values[0] - best.values[1])
    return None


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_a_request_whose_logits_are_not_finite_fails_alone(architecture: str, tmp_path: Path) -> None:
    """Its blocks go to others, who must not see what it left in them."""
    directory = model_directory(tmp_path, architecture, tie_word_embeddings=False)
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][ord("!")] = float("nan")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    few = {"num_gpu_blocks_override": 24, "max_model_len": 128, "enable_prefix_caching": False}
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, logit_bias={ord("!"): -100.0})
    bad = "this one has a bad token! in the middle " * 2
    with LLM(str(directory), **few) as llm:
        expected = [output.token_ids for output in llm.generate(PROMPTS, params)]
        for _ in range(3):
            with pytest.raises(EngineError, match="logits are not finite"):
                llm.generate([PROMPTS[0], bad, PROMPTS[1]], params)
            assert [output.token_ids for output in llm.generate(PROMPTS, params)] == expected
        assert (llm._engine.stats.running, llm._engine.stats.blocks_held) == (0, 0)

"""``examples/steering``: activations of some requests get a direction on top, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llmkit import LLM, RequestError, SamplingParams, StartupError
from llmkit.testing import bytes_tokenizer, tiny
from tests.core.distributions import EXAMPLES, install_project

HIDDEN = 48
PROMPT = [*b"Today I feel as if the whole of the morning had been made for walking by a river"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_project(folder, EXAMPLES / "steering")
    made = torch.Generator().manual_seed(3)
    directions = {name: torch.randn(HIDDEN, generator=made) for name in ("calm", "loud")}
    save_file(directions, folder / "directions.safetensors")
    tiny.build(bytes_tokenizer.write(folder / "model"), "LlamaForCausalLM")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        for name in [name for name in sys.modules if name.startswith("llmkit_steering")]:
            del sys.modules[name]


def start(site: Path, *, layer: int = 1, **more: Any) -> LLM:
    options = (f"steering.vectors={site / 'directions.safetensors'}", f"steering.layer={layer}")
    return LLM(str(site / "model"), plugin=("steering",), plugin_option=options, max_model_len=256, **more)


@pytest.fixture(scope="module")
def llm(site: Path) -> Iterator[LLM]:
    with start(site, deterministic=True) as made:
        yield made


def params(direction: str | None, strength: float = 3.0) -> SamplingParams:
    args = {} if direction is None else {"steering": {"name": direction, "strength": strength}}
    return SamplingParams(max_tokens=24, temperature=0.0, logprobs=1, ignore_eos=True, plugin_args=args)


def answers(llm: LLM, asked: Sequence[SamplingParams]) -> list[Any]:
    outputs = llm.generate([PROMPT] * len(asked), list(asked))
    return [(output.token_ids, output.logprobs) for output in outputs]


def forget(llm: LLM) -> None:
    assert llm._engine is not None
    assert llm._engine._core._scheduler.reset_prefix_cache()


def hits(llm: LLM) -> int:
    assert llm._engine is not None
    return llm._engine._core.stats.prefix_hits


def test_requests_steered_differently_and_one_not_are_each_as_alone_cold_and_warm(llm: LLM) -> None:
    asked = [params("calm"), params(None), params("loud"), params("calm", -3.0)]
    alone = []
    for one in asked:
        forget(llm)
        alone += answers(llm, [one])
    assert len({tuple(ids) for ids, _ in alone}) == len(asked), (
        "a direction that changes nothing shows nothing"
    )
    forget(llm)
    before = hits(llm)
    assert answers(llm, asked) == alone
    assert hits(llm) == before
    assert answers(llm, asked) == alone
    assert hits(llm) > before


def test_every_model_implementation_is_tapped_at_the_same_place(site: Path, llm: LLM) -> None:
    with start(site, model_impl="transformers") as other:
        for one in (params(None), params("loud")):
            (ids, logprobs), (expected, expected_logprobs) = answers(other, [one])[0], answers(llm, [one])[0]
            assert ids == expected
            assert [entry.sampled.logprob for entry in logprobs] == pytest.approx(
                [entry.sampled.logprob for entry in expected_logprobs], abs=1e-3
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wild"}, "no direction is called 'wild'; known: .*calm"),
        ({"strength": 1}, "name"),
        ({"name": "calm", "much": 1}, "much"),
        ({"name": "calm", "strength": float("inf")}, "<= 1000"),
        ({"name": "calm", "strength": float("nan")}, ">= -1000"),
    ],
)
def test_wrong_arguments_are_refused_in_words(llm: LLM, arguments: Any, message: str) -> None:
    with pytest.raises(RequestError, match=rf"plugin_args\.steering: .*{message}"):
        llm.generate([PROMPT], SamplingParams(plugin_args={"steering": arguments}))


def test_a_layer_that_is_not_there_ends_the_start_with_the_plugins_name(site: Path) -> None:
    with pytest.raises(StartupError, match="plugin 'steering' refuses the model: there is no layer 7"):
        start(site, layer=7)


def test_the_entry_module_imports_no_torch(site: Path) -> None:
    code = f"import sys; sys.path.append({str(site)!r}); import llmkit_steering.plugin; "
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True)

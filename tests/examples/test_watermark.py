"""``examples/watermark``: a third party's logits processor, from the request's field to its mark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmkit import LLM, RequestError, SamplingParams
from llmkit.testing import bytes_tokenizer, tiny
from tests.core.distributions import EXAMPLES, install_project

KEY = 1234


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_project(folder, EXAMPLES / "watermark")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        for name in [name for name in sys.modules if name.startswith("llmkit_watermark")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def llm(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = tiny.build(bytes_tokenizer.write(tmp_path_factory.mktemp("tiny")), "LlamaForCausalLM")
    options: dict[str, Any] = {"plugin": ("watermark",), "plugin_option": (f"watermark.key={KEY}",)}
    with LLM(str(model), deterministic=True, max_model_len=256, **options) as made:
        yield made


def params(seed: int, **plugin_args: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=150, temperature=1.0, seed=seed, ignore_eos=True, plugin_args=plugin_args
    )


def tokens(llm: LLM, asked: list[SamplingParams]) -> list[list[int]]:
    return [
        list(output.choices[0].token_ids) for output in llm.generate(["Rivers begin"] * len(asked), asked)
    ]


def test_a_marked_text_is_recognised_and_its_neighbours_are_not_touched(llm: LLM) -> None:
    from llmkit_watermark import detect

    asked = [params(0), params(1, watermark={"delta": 4}), params(2), params(3, watermark={})]
    together = tokens(llm, asked)
    scores = [detect(ids, KEY) for ids in together]
    assert min(scores[1], scores[3]) > 4
    assert max(abs(scores[0]), abs(scores[2])) < 4
    assert abs(detect(together[1], KEY + 1)) < 4
    assert together == [tokens(llm, [one])[0] for one in asked]


@pytest.mark.parametrize("arguments", [{"delta": 0}, {"delta": "much"}, {"gamma": 0.5}, [1]])
def test_wrong_arguments_are_refused_in_words(llm: LLM, arguments: Any) -> None:
    with pytest.raises(RequestError, match=r"plugin_args\['watermark'\]: .*delta"):
        llm.generate("x", params(0, watermark=arguments))


def test_the_entry_module_imports_no_torch(site: Path) -> None:
    code = f"import sys; sys.path.append({str(site)!r}); import llmkit_watermark.plugin; "
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True)

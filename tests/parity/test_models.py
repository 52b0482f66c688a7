"""Both implementations against transformers' own eager forward, and faults that this must notice."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llmkit.testing import tiny
from llmkit_models.shape import FAMILIES
from tests.parity import harness
from tests.parity.harness import DETERMINISTIC, PARTS, Row, Runner

TOLERANCE = 1e-4
LENGTH = 40
IDS = torch.randint(3, tiny.VOCAB_SIZE, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()
ARCHITECTURES = tuple(tiny.MODELS)
PATHS = [(name, "native") for name in FAMILIES] + [(name, "transformers") for name in ARCHITECTURES]
PACKED = [
    ("MistralForCausalLM", "native"),
    ("LlamaForCausalLM", "transformers"),
    ("MistralForCausalLM", "transformers"),
    ("Gemma2ForCausalLM", "transformers"),
    ("Gemma3ForCausalLM", "transformers"),
    ("GPT2LMHeadModel", "transformers"),
    ("MixtralForCausalLM", "transformers"),
]
CHUNKINGS = {"whole": [LENGTH], "chunked, then decode": [13, 7, *[1] * 20]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = tiny.build(tmp_path_factory.mktemp(architecture), architecture)
        return made[architecture]

    return get


@pytest.fixture(scope="module")
def expected() -> Callable[..., Tensor]:
    """Logits of transformers' eager attention in fp32."""
    known: dict[str, Tensor] = {}

    def get(architecture: str, ids: list[int] = IDS) -> Tensor:
        key = f"{architecture}{ids}"
        if key not in known:
            with torch.no_grad():
                output = tiny.make(architecture)(input_ids=torch.tensor([ids]), use_cache=False)
            known[key] = output.logits[0]
        return known[key]

    return get


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiny_models_show_faults(architecture: str) -> None:
    """Attention entropy below half of uniform in every layer, logits that spread, a window shorter than
    the sequences."""
    with torch.no_grad():
        output = tiny.make(architecture)(
            input_ids=torch.tensor([IDS]), use_cache=False, output_attentions=True
        )
    assert output.logits.std() > 1
    for weights in output.attentions:
        entropy = torch.special.entr(weights[0]).sum(-1)  # [heads, queries]
        uniform = (weights[0] > 0).sum(-1).float().log()
        assert entropy[:, 1:].sum() < 0.5 * uniform[:, 1:].sum()
    assert tiny.WINDOW * 2 < LENGTH


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(("architecture", "path"), PATHS)
def test_logits_equal_transformers(
    architecture: str,
    path: str,
    parts: harness.Parts,
    checkpoint: Callable[[str], Path],
    expected: Callable[..., Tensor],
) -> None:
    model = harness.load(path, checkpoint(architecture), parts=parts)
    reference = expected(architecture)
    for name, chunks in CHUNKINGS.items():
        logits = Runner(model, parts).whole(IDS, chunks)
        assert logits.dtype == torch.float32
        assert (logits - reference).abs().max() < TOLERANCE, name


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(("architecture", "path"), PACKED)
def test_packed_rows_equal_transformers(
    architecture: str,
    path: str,
    parts: harness.Parts,
    checkpoint: Callable[[str], Path],
    expected: Callable[..., Tensor],
) -> None:
    """Prefill, chunk and decode rows of three sequences in one step."""
    runner = Runner(harness.load(path, checkpoint(architecture), parts=parts), parts)
    sequences = [IDS, IDS[5:30], IDS[20:39]]
    rows = [Row(ids) for ids in sequences]
    runner.step([(rows[0], 25)])
    runner.step([(rows[1], 9)])
    decode, chunk, prefill = runner.step([(rows[0], 1), (rows[1], 11), (rows[2], 19)])
    assert (decode - expected(architecture, sequences[0])[25:26]).abs().max() < TOLERANCE
    assert (chunk - expected(architecture, sequences[1])[9:20]).abs().max() < TOLERANCE
    assert (prefill - expected(architecture, sequences[2])).abs().max() < TOLERANCE


def _set(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update(entries)


def _set_rope(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["rope_parameters"].update(entries)


CONFIG_FAULTS = [
    ("MistralForCausalLM", "native", "window one longer", _set(sliding_window=tiny.WINDOW + 1)),
    ("MistralForCausalLM", "native", "window one shorter", _set(sliding_window=tiny.WINDOW - 1)),
    ("MistralForCausalLM", "transformers", "window one longer", _set(sliding_window=tiny.WINDOW + 1)),
    ("Qwen2ForCausalLM", "native", "window on no layer", _set(use_sliding_window=False)),
    ("Qwen2ForCausalLM", "native", "window on every layer", _set(layer_types=["sliding_attention"] * 3)),
    ("LlamaForCausalLM", "native", "wrong rope base", _set_rope(rope_theta=20000.0)),
    ("LlamaForCausalLM", "transformers", "wrong rope base", _set_rope(rope_theta=20000.0)),
    ("LlamaForCausalLM", "native", "other epsilon", _set(rms_norm_eps=1e-3)),
    ("SmolLM3ForCausalLM", "native", "rope on every layer", _set(no_rope_layers=[1, 1, 1])),
    ("Gemma2ForCausalLM", "transformers", "no soft cap", _set(attn_logit_softcapping=None)),
    ("Gemma2ForCausalLM", "transformers", "no final soft cap", _set(final_logit_softcapping=None)),
    ("Gemma2ForCausalLM", "transformers", "other scale", _set(query_pre_attn_scalar=64)),
    ("Gemma2ForCausalLM", "transformers", "window one longer", _set(sliding_window=tiny.WINDOW + 1)),
    ("GraniteForCausalLM", "transformers", "no logit scale", _set(logits_scaling=1.0)),
    ("CohereForCausalLM", "transformers", "no logit scale", _set(logit_scale=1.0)),
]


@pytest.mark.parametrize(
    ("architecture", "path", "fault"),
    [pytest.param(a, p, change, id=f"{a}-{p}-{what}") for a, p, what, change in CONFIG_FAULTS],
)
def test_planted_config_faults_are_noticed(
    architecture: str,
    path: str,
    fault: Callable[[dict[str, Any]], None],
    checkpoint: Callable[[str], Path],
    expected: Callable[..., Tensor],
) -> None:
    directory = checkpoint(architecture)
    config = copy.deepcopy(tiny.config_of(directory))
    fault(config)
    logits = Runner(harness.load(path, directory, config=config)).whole(IDS, [LENGTH])
    assert (logits - expected(architecture)).abs().max() > 10 * TOLERANCE


def _shift_windows(spec: Any) -> dict[str, Any]:
    return {"window": spec.window and spec.window + 1}


SPEC_FAULTS = [
    ("Gemma2ForCausalLM", "window one longer", _shift_windows),
    ("Gemma3ForCausalLM", "window one longer", _shift_windows),
    ("Phi3ForCausalLM", "window one longer", _shift_windows),
    ("Gemma2ForCausalLM", "no soft cap", lambda spec: {"soft_cap": None}),
    ("GraniteForCausalLM", "missing scale", lambda spec: {"scale": spec.head_size**-0.5}),
    ("GPT2LMHeadModel", "missing scale", lambda spec: {"scale": 1.0}),
]


@pytest.mark.parametrize(
    ("architecture", "fault"),
    [pytest.param(a, change, id=f"{a}-{what}") for a, what, change in SPEC_FAULTS],
)
def test_planted_attention_faults_are_noticed(
    architecture: str,
    fault: Callable[[Any], dict[str, Any]],
    checkpoint: Callable[[str], Path],
    expected: Callable[..., Tensor],
) -> None:
    """The backend is told something else than the model says."""
    model = harness.load("transformers", checkpoint(architecture))
    model.attention = tuple(dataclasses.replace(spec, **fault(spec)) for spec in model.attention)
    logits = Runner(model).whole(IDS, [LENGTH])
    assert (logits - expected(architecture)).abs().max() > 10 * TOLERANCE


def test_missing_query_and_key_norms_are_noticed(
    checkpoint: Callable[[str], Path], expected: Callable[..., Tensor]
) -> None:
    model: Any = harness.load("native", checkpoint("Qwen3ForCausalLM"))
    for layer in model._layers:
        layer._q_norm = layer._k_norm = None
    logits = Runner(model).whole(IDS, [LENGTH])
    assert (logits - expected("Qwen3ForCausalLM")).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("architecture", FAMILIES)
def test_native_rows_do_not_depend_on_the_batch(architecture: str, checkpoint: Callable[[str], Path]) -> None:
    """Bitwise, with row-invariant linear layers and attention: any chunking, any neighbours."""
    model = harness.load("native", checkpoint(architecture), parts=DETERMINISTIC)
    whole = Runner(model, tokenwise=True).whole(IDS, [LENGTH])
    for seed, chunks in enumerate(([13, 7, *[1] * 20], [1] * LENGTH, [3, 17, 20], [39, 1])):
        assert torch.equal(Runner(model, tokenwise=True, seed=seed).whole(IDS, chunks), whole)
    runner = Runner(model, tokenwise=True)
    first, second = Row(IDS), Row(IDS[7:31])
    apart = Runner(model, tokenwise=True).whole(IDS[7:31], [24])
    runner.step([(first, 21)])
    decoded, prefilled = runner.step([(first, 1), (second, 24)])
    assert torch.equal(decoded, whole[21:22])
    assert torch.equal(prefilled, apart)


@pytest.mark.parametrize("rope", [
    pytest.param({"rope_type": "linear", "factor": 4.0}, id="linear"),
    pytest.param(
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64}, id="llama3",
    ),
    pytest.param({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, id="yarn"),
])  # fmt: skip
def test_native_rope_scalings_equal_transformers(rope: dict[str, Any], tmp_path: Path) -> None:
    overrides = {"rope_parameters": {"rope_theta": 5000.0, **rope}}
    directory = tiny.build(tmp_path, "LlamaForCausalLM", **overrides)
    with torch.no_grad():
        own = tiny.make("LlamaForCausalLM", **overrides)(input_ids=torch.tensor([IDS]), use_cache=False)
    logits = Runner(harness.load("native", directory)).whole(IDS, [LENGTH])
    assert (logits - own.logits[0]).abs().max() < TOLERANCE


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(("architecture", "path"), [
    ("LlamaForCausalLM", "native"), ("MistralForCausalLM", "native"),
    ("LlamaForCausalLM", "transformers"), ("Gemma3ForCausalLM", "transformers"),
])  # fmt: skip
def test_one_kv_head_equals_transformers(
    architecture: str, path: str, parts: harness.Parts, tmp_path: Path
) -> None:
    directory = tiny.build(tmp_path, architecture, num_key_value_heads=1)
    with torch.no_grad():
        own = tiny.make(architecture, num_key_value_heads=1)(input_ids=torch.tensor([IDS]), use_cache=False)
    logits = Runner(harness.load(path, directory, parts=parts), parts).whole(IDS, [30, *[1] * 10])
    assert (logits - own.logits[0]).abs().max() < TOLERANCE


@pytest.mark.parametrize("overrides", [
    pytest.param({"attention_bias": True}, id="biased attention"),
    pytest.param({"mlp_bias": True}, id="biased mlp"),
    pytest.param({"tie_word_embeddings": True}, id="tied"),
    pytest.param({"num_key_value_heads": 6}, id="no grouped heads"),
])  # fmt: skip
def test_native_variants_equal_transformers(overrides: dict[str, Any], tmp_path: Path) -> None:
    directory = tiny.build(tmp_path, "LlamaForCausalLM", **overrides)
    with torch.no_grad():
        own = tiny.make("LlamaForCausalLM", **overrides)(input_ids=torch.tensor([IDS]), use_cache=False)
    logits = Runner(harness.load("native", directory)).whole(IDS, [30, *[1] * 10])
    assert (logits - own.logits[0]).abs().max() < TOLERANCE


def test_pipeline_stages_equal_the_whole(checkpoint: Callable[[str], Path]) -> None:
    """Two native stages, one after the other, give the bits of the whole model."""
    directory = checkpoint("LlamaForCausalLM")
    whole = Runner(harness.load("native", directory)).whole(IDS, [LENGTH])
    stages = (
        harness.load("native", directory, layers=(0, 2)),
        harness.load("native", directory, layers=(2, 3)),
    )

    class Piped:
        vocab_size = stages[0].vocab_size
        attention = stages[0].attention + stages[1].attention

        def forward(self, inputs: Any, ctx: Any, state: Any) -> Any:
            middle = stages[0].forward(inputs, ctx, None)
            shifted = _ShiftedBackend(ctx.backend, len(stages[0].attention))
            ctx.backend = shifted
            return stages[1].forward(inputs, ctx, middle)

        logits = staticmethod(stages[1].logits)

    piped: Any = Piped()
    assert torch.equal(Runner(piped).whole(IDS, [LENGTH]), whole)


class _ShiftedBackend:
    """The second stage's layers behind the first's in one pool."""

    def __init__(self, backend: Any, by: int) -> None:
        self._backend = backend
        self._by = by

    def attend(self, inputs: Any, plan: Any, out: Tensor) -> None:
        inputs.layer += self._by
        self._backend.attend(inputs, plan, out)

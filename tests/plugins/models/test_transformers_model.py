"""The transformers path: what it loads, what it hands to plugins, and what it refuses by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from llmkit import CheckpointError, StartupError, UnsupportedModel
from llmkit.contracts import CheckpointInfo, LinearEnv, ModelInput, ModelParts, OpsEnv, StepContext
from llmkit.nn import TensorRef, torch_ops
from llmkit.testing import tiny
from llmkit_models import hf_attention, hf_probe
from llmkit_models.hf_linear import MethodEmbedding, MethodLinear
from llmkit_models.plugin import make_native, make_transformers
from llmkit_torch_reference.linear import TorchLinear
from tests.parity.harness import PARTS, Parts, Runner, checkpoint_refs, load, model_parts, model_spec

IDS = list(range(5, 25))


def built(directory: Path, architecture: str, **overrides: Any) -> dict[str, Any]:
    return tiny.config_of(tiny.build(directory, architecture, **overrides))


def test_every_linear_layer_goes_through_the_method(tmp_path: Path) -> None:
    tiny.build(tmp_path, "Qwen3ForCausalLM")
    model: Any = load("transformers", tmp_path)
    modules = list(model._model.modules())
    assert not [module for module in modules if type(module) is nn.Linear]
    assert sum(isinstance(module, MethodLinear) for module in modules) == 3 * 7 + 1
    assert sum(isinstance(module, MethodEmbedding) for module in modules) == 1
    norms = sum(parameter.numel() for parameter in model._model.parameters())
    assert norms == 3 * (2 * 48 + 2 * 16) + 48  # nothing but norms is left in torch's hands


def test_weights_are_read_once_and_reported_once(tmp_path: Path) -> None:
    config = built(tmp_path, "MixtralForCausalLM")
    seen: list[str] = []
    model = make_transformers(model_spec(config), model_parts(), None)
    model.load(checkpoint_refs(tmp_path), lambda ref: seen.append(ref.name))
    assert sorted(seen) == sorted(ref.name for ref in checkpoint_refs(tmp_path))


def test_attention_is_known_before_weights(tmp_path: Path) -> None:
    config = built(tmp_path, "Gemma2ForCausalLM")
    model = make_transformers(model_spec(config), model_parts(), None)
    assert [spec.window for spec in model.attention] == [tiny.WINDOW, None] * 2
    assert {spec.soft_cap for spec in model.attention} == {12.0}
    assert {spec.scale for spec in model.attention} == {0.25}
    assert model.vocab_size == tiny.VOCAB_SIZE


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    tiny.build(tmp_path, "LlamaForCausalLM", dtype="bfloat16")
    wide = Runner(load("native", tmp_path)).whole(IDS, [20])
    for path in ("native", "transformers"):
        narrow = _BFloat16Runner(path, tmp_path).logits(IDS)
        assert narrow.dtype == torch.float32
        assert (narrow - wide).norm() / wide.norm() < 0.15


class _BFloat16Runner:
    """A whole prompt in bfloat16 over the probe's attention."""

    def __init__(self, path: str, directory: Path) -> None:
        linear = TorchLinear(LinearEnv("cpu", "bfloat16", "dense", False))
        parts = ModelParts(linear, torch_ops(OpsEnv("cpu", "bfloat16", False)))
        make = {"native": make_native, "transformers": make_transformers}[path]
        self._model = make(model_spec(tiny.config_of(directory), dtype="bfloat16"), parts, None)
        self._model.load(checkpoint_refs(directory), lambda ref: None)

    def logits(self, ids: list[int]) -> Tensor:
        backend: Any = hf_probe._PackedAttention(self._model.attention, [len(ids)])
        inputs = ModelInput(torch.tensor(ids), torch.arange(len(ids)))
        state = self._model.forward(inputs, StepContext(backend, backend), None)
        return self._model.logits(state.hidden)


@pytest.mark.parametrize("path", ["native", "transformers"])
def test_embeddings_stand_in_for_tokens(path: str, tmp_path: Path) -> None:
    tiny.build(tmp_path, "LlamaForCausalLM")
    model: Any = load(path, tmp_path)
    table = next(ref for ref in checkpoint_refs(tmp_path) if "embed" in ref.name).dense(torch.float32)
    backend: Any = hf_probe._PackedAttention(model.attention, [4])
    ctx, places = StepContext(backend, backend), torch.arange(4)
    given = table[[5, 6, 7, 8]]
    from_ids = model.forward(ModelInput(torch.tensor([5, 6, 7, 8]), places), ctx, None).hidden
    from_rows = model.forward(ModelInput(None, places, given), ctx, None).hidden
    assert torch.equal(from_ids, from_rows)
    assert torch.equal(given, table[[5, 6, 7, 8]])  # the caller's tensor is not written to


@pytest.mark.parametrize("path", ["native", "transformers"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_faulty_checkpoints_are_refused_by_weight(path: str, architecture: str, tmp_path: Path) -> None:
    config = built(tmp_path, architecture)
    refs = list(checkpoint_refs(tmp_path))
    victim = "model.layers.1.self_attn.k_proj.weight"
    norm = "model.layers.2.input_layernorm.weight"

    def attempt(some: list[Any]) -> str:
        make = {"native": make_native, "transformers": make_transformers}[path]
        with pytest.raises(CheckpointError) as caught:
            make(model_spec(config), model_parts(), None).load(some, lambda ref: None)
        return str(caught.value)

    for name in (victim, norm, "model.embed_tokens.weight"):
        assert name in attempt([ref for ref in refs if ref.name != name])
        assert name in attempt([TensorRef(n.name, torch.zeros(3, 3)) if n.name == name else n for n in refs])
    assert "model.layers.9.odd" in attempt([*refs, TensorRef("model.layers.9.odd", torch.zeros(1))])


def test_tied_head_in_the_file_is_no_fault(tmp_path: Path) -> None:
    """Some checkpoints store the output head although it is the embedding."""
    config = built(tmp_path, "Qwen3ForCausalLM")
    refs: list[Any] = list(checkpoint_refs(tmp_path))
    head = next(ref for ref in refs if "embed" in ref.name).dense(torch.float32)
    expected = Runner(load("native", tmp_path)).whole(IDS, [20])
    for make in (make_native, make_transformers):
        model = make(model_spec(config), model_parts(), None)
        model.load([*refs, TensorRef("lm_head.weight", head)], lambda ref: None)
        assert (Runner(model).whole(IDS, [20]) - expected).abs().max() < 1e-4


def test_longrope_within_its_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4}
    overrides = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    tiny.build(tmp_path, "Phi3ForCausalLM", **overrides)
    with torch.no_grad():
        own = tiny.make("Phi3ForCausalLM", **overrides)(input_ids=torch.tensor([IDS]), use_cache=False)
    logits = Runner(load("transformers", tmp_path, max_model_len=64)).whole(IDS, [12, 8])
    assert (logits - own.logits[0]).abs().max() < 1e-4


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}, "s_aux"),
    ("bloom", {"n_layer": 3, "n_head": 6, "hidden_size": 96}, "0 of its 3 layers"),
    ("falcon", {"head_dim": None, "hidden_size": 96}, "not take its attention from transformers' registry"),
    ("mamba", {"hidden_size": 32}, "0 of its 3 layers"),
    ("doge", {"head_dim": None, "hidden_size": 96}, "bias or mask of its own"),
    ("diffllama", {"head_dim": None, "hidden_size": 96}, "more than once"),
    ("qwen3_next", {}, "of its 3 layers"),
]


@pytest.mark.parametrize(("model_type", "entries", "reason"), REFUSED, ids=[item[0] for item in REFUSED])
def test_models_that_attend_in_other_ways_are_refused(
    model_type: str, entries: dict[str, Any], reason: str
) -> None:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = {k: v for k, v in (tiny._BASE | entries).items() if v is not None}
    config = AutoConfig.for_model(model_type, **values).to_dict()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    spec = model_spec({**config, "architectures": [architecture], "num_hidden_layers": 3})
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        make_transformers(spec, model_parts(), None)
    assert architecture in str(caught.value)


@pytest.mark.parametrize(("change", "reason"), [
    ({"model_type": "lama"}, "no model_type 'lama'; the nearest it knows is 'llama'"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "transformers builds LlamaForCausalLM"),
    ({"use_bidirectional_attention": True}, "not causal"),
    ({"num_attention_heads": "six"}, "cannot"),
])  # fmt: skip
def test_configs_that_do_not_fit_are_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = built(tmp_path, "LlamaForCausalLM") | change
    info = CheckpointInfo(config["architectures"][0], config)
    spec = model_spec(built(tmp_path, "LlamaForCausalLM"), info=info)
    with pytest.raises(UnsupportedModel, match=reason):
        make_transformers(spec, model_parts(), None)


def test_a_window_that_only_a_mask_would_carry_is_refused(tmp_path: Path) -> None:
    """Masks are not built here, so such a model would silently attend to everything."""
    config = built(tmp_path, "LlamaForCausalLM") | {"sliding_window": 9}
    with pytest.raises(UnsupportedModel, match="'sliding_attention' but calls attention with window None"):
        make_transformers(model_spec(config), model_parts(), None)


class _Wrapped:
    """A loaded model with a fault."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        logits: Tensor = self._model.run(inputs, ctx)
        return logits

    @property
    def window(self) -> int | None:
        window: int | None = self._model.window
        return window

    def run_own(self, ids: Tensor, window: int | None) -> Tensor:
        own: Tensor = self._model.run_own(ids, window)
        return own


class _Leaky(_Wrapped):
    """Tokens see the batch they are in."""

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        logits = super().run(inputs, ctx)
        return logits + 0.1 * logits.mean(0)


class _Forgetful(_Wrapped):
    """Counts positions itself, as if a step were one sequence."""

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        return super().run(ModelInput(inputs.token_ids, torch.arange(len(inputs.positions))), ctx)


class _Different(_Wrapped):
    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        return super().run(inputs, ctx) * 1.01


class _Repeating(_Wrapped):
    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        super().run(inputs, ctx)
        return super().run(inputs, ctx)


@pytest.mark.parametrize(("kind", "complaint"), [
    (_Leaky, "packed sequences differ"),
    (_Forgetful, "packed sequences differ"),
    (_Different, "differ from the model's own attention"),
    (_Repeating, "not once each"),
])  # fmt: skip
def test_probe_notices(kind: type[_Wrapped], complaint: str, tmp_path: Path) -> None:
    tiny.build(tmp_path, "GPT2LMHeadModel")
    model: Any = load("transformers", tmp_path)
    with pytest.raises(UnsupportedModel, match=complaint):
        hf_probe.probe(kind(model), model.attention, model.vocab_size, torch.float32, "cpu")
    hf_probe.probe(_Wrapped(model), model.attention, model.vocab_size, torch.float32, "cpu")


@pytest.mark.parametrize("fault", [
    pytest.param(lambda window: window + 1, id="one longer"),
    pytest.param(lambda window: window - 1, id="one shorter"),
    pytest.param(lambda window: None, id="none"),
])  # fmt: skip
@pytest.mark.parametrize("architecture", [
    "MistralForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM",
    "Starcoder2ForCausalLM",
])  # fmt: skip
def test_probe_crosses_windows_of_any_length(architecture: str, fault: Any, tmp_path: Path) -> None:
    """4096 tokens are too many to run, yet a layer whose window is off must not pass."""
    tiny.build(tmp_path, architecture, sliding_window=4096)
    model: Any = load("transformers", tmp_path)
    assert max(spec.window or 0 for spec in model.attention) == 4096
    wrong = [
        spec if spec.window is None else dataclasses.replace(spec, window=fault(spec.window))
        for spec in model.attention
    ]
    with pytest.raises(UnsupportedModel, match="differ from the model's own attention"):
        hf_probe.probe(model, wrong, model.vocab_size, torch.float32, "cpu")
    assert model.window == 4096


def test_memory_of_weights_is_counted_once_each(tmp_path: Path) -> None:
    for architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel"):
        directory = tmp_path / architecture
        tiny.build(directory, architecture)
        stored = sum(ref.dense(torch.float32).nbytes for ref in checkpoint_refs(directory))
        tables = {"GPT2LMHeadModel": 0}.get(architecture, 2 * 16 * 4)  # inverse frequencies
        assert stored <= load("transformers", directory).weight_bytes <= stored + tables


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_memory_of_native_weights_is_counted_in_the_form_they_are_kept(parts: Parts, tmp_path: Path) -> None:
    rope = 2 * tiny.MAX_POSITION * 8 * 4
    for architecture, tied in (("LlamaForCausalLM", False), ("Qwen3ForCausalLM", True)):
        directory = tmp_path / architecture
        tiny.build(directory, architecture)
        stored = sum(ref.dense(torch.float32).nbytes for ref in checkpoint_refs(directory))
        table = tiny.VOCAB_SIZE * 48 * 4
        again = table if tied and parts is PARTS["paged-cpu"] else 0  # packed weights have no readable rows
        assert load("native", directory, parts=parts).weight_bytes == stored + rope + again


def test_a_version_that_lacks_what_loading_needs_is_named() -> None:
    code = (
        "import transformers.modeling_utils, transformers.core_model_loading as m; del m.rename_source_key\n"
        "from llmkit import StartupError\n"
        "try:\n    import llmkit_models.hf_load\nexcept StartupError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"transformers {transformers.__version__} lacks" in done.stdout
    assert "rename_source_key" in done.stdout


def test_a_method_that_loading_needs_and_is_not_there_is_named(tmp_path: Path) -> None:
    config = built(tmp_path, "LlamaForCausalLM")
    model: Any = make_transformers(model_spec(config), model_parts(), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(transformers.PreTrainedModel, "_initialize_missing_keys")
        with pytest.raises(
            StartupError, match=f"transformers {transformers.__version__} lacks .*_initialize"
        ):
            model.load(checkpoint_refs(tmp_path), lambda ref: None)


def test_registering_twice_is_harmless() -> None:
    hf_attention.register()
    hf_attention.register()

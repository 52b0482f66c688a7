"""Linear, embedding, attention, rotary and the weight map."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import AttentionSpec, LayerInputs, LinearEnv, OpsEnv, StepContext
from llmkit.nn import (
    Attention,
    AttentionOutput,
    Embedding,
    Linear,
    LMHead,
    RMSNorm,
    RopeSpec,
    Rotary,
    TensorRef,
    WeightMap,
    inverse_frequencies,
    torch_ops,
)
from llmkit_torch_reference.linear import TorchLinear

METHOD = TorchLinear(LinearEnv("cpu", "float32", "dense", deterministic=False))


def _ignore(ref: Any) -> None:
    return None


def test_fused_parts_give_their_products_side_by_side() -> None:
    linear = Linear(METHOD, "qkv", 4, (3, 2), bias=True)
    weights = WeightMap()
    linear.map_weights(weights, "q", "k")
    tensors = {"k.weight": torch.randn(2, 4), "q.bias": torch.randn(3), "q.weight": torch.randn(3, 4)}
    tensors["k.bias"] = torch.randn(2)
    weights.load((TensorRef(name, tensor) for name, tensor in tensors.items()), _ignore)
    linear.finish()
    x = torch.randn(5, 4)
    expected = torch.cat([x @ tensors[f"{p}.weight"].T + tensors[f"{p}.bias"] for p in "qk"], 1)
    torch.testing.assert_close(linear(x), expected)
    assert linear.nbytes == 4 * 5 * 5


def test_tied_head_embeds_its_own_rows() -> None:
    head = LMHead(METHOD, 7, 4)
    table = torch.randn(7, 4)
    head.load(0, TensorRef("embed", table))
    head.finish()
    ids = torch.tensor([6, 0, 6])
    assert torch.equal(head.embed(ids), table[ids])
    logits = head.logits(torch.ones(1, 4))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits[0], table.sum(1))


def test_embedding_converts_to_the_activations_dtype() -> None:
    embedding = Embedding(5, 3, torch.float32, "cpu")
    weights = WeightMap()
    embedding.map_weights(weights, "embed")
    table = torch.randn(5, 3).bfloat16()
    weights.load([TensorRef("embed.weight", table)], _ignore)
    assert torch.equal(embedding(torch.tensor([4, 1])), table.float()[[4, 1]])


def test_norm_of_heads_is_the_norm_of_each() -> None:
    norm = RMSNorm(torch_ops(OpsEnv("cpu", "float32", False)), 6, 1e-6, torch.float32, "cpu")
    weights = WeightMap()
    norm.map_weights(weights, "norm")
    weights.load([TensorRef("norm.weight", torch.randn(6))], _ignore)
    fused = torch.randn(2, 5, 6)
    heads = norm.heads(fused[:, 1:4])
    assert heads.shape == (2, 3, 6)
    assert torch.equal(heads[1, 2], norm(fused[1:2, 3])[0])


class _Echo:
    """A backend that returns q."""

    def __init__(self) -> None:
        self.addresses: list[int] = []

    def attend(self, inputs: LayerInputs, plan: Any, out: torch.Tensor) -> None:
        self.addresses.append(out.data_ptr())
        out.copy_(inputs.q + inputs.layer)


def test_attention_writes_into_one_buffer_that_stays() -> None:
    spec = AttentionSpec(2, 1, 3, 3, 1.0)
    output = AttentionOutput(2, 3, torch.float32, "cpu")
    first, second = Attention(0, spec, output), Attention(1, spec, output)
    backend: Any = _Echo()
    ctx = StepContext(backend, backend)
    big, small = torch.randn(8, 2, 3), torch.randn(2, 2, 3)
    assert torch.equal(first(big, None, None, ctx), big.view(8, 6))
    assert torch.equal(second(small, None, None, ctx), small.view(2, 6) + 1)
    first(big, None, None, ctx)
    assert len(set(backend.addresses)) == 1


@pytest.mark.parametrize("rope", [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
     "mscale_all_dim": 0.7, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
], ids=lambda rope: f"{rope['rope_type']}-{len(rope)}")  # fmt: skip
def test_frequencies_equal_transformers(rope: dict[str, Any]) -> None:
    config = LlamaConfig(
        head_dim=64, max_position_embeddings=2048, rope_parameters={"rope_theta": 5e5, **rope}
    )
    expected, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    frequencies, own_scale = inverse_frequencies(RopeSpec(64, 5e5, rope["rope_type"], rope, 2048))
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert own_scale == pytest.approx(scale)


def test_rotary_gathers_rows_by_position() -> None:
    rotary = Rotary(RopeSpec(4, 100.0), 32, torch.float32, "cpu")
    cos, sin = rotary.rows(torch.tensor([31, 0, 7]))
    angles = torch.tensor([31.0, 0.0, 7.0])[:, None] * torch.tensor([1.0, 0.1])
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())


def test_unknown_rope_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"'dynamic'.*default, linear, llama3, yarn"):
        inverse_frequencies(RopeSpec(4, type="dynamic"))


def _map() -> tuple[WeightMap, list[str]]:
    weights, taken = WeightMap(), []
    for name in ("a", "b"):
        weights.add(name, (2, 3), lambda ref: taken.append(ref.name))
    weights.ignore(lambda name: name.endswith("inv_freq"))
    return weights, taken


def test_weight_map_hands_out_and_tells_progress() -> None:
    weights, taken = _map()
    seen: list[str] = []
    refs = [TensorRef(name, torch.zeros(2, 3)) for name in ("b", "layer.inv_freq", "a")]
    weights.load(refs, lambda ref: seen.append(ref.name))
    assert taken == ["b", "a"]
    assert seen == ["b", "layer.inv_freq", "a"]


@pytest.mark.parametrize(("refs", "complaint"), [
    pytest.param([("a", (2, 3))], "missing b", id="missing"),
    pytest.param([("a", (2, 3)), ("b", (2, 3)), ("c", (1,))], "not expected c", id="left over"),
    pytest.param([("a", (2, 3)), ("b", (3, 2))], r"wrong shape b is \[3, 2\], not \[2, 3\]", id="shape"),
    pytest.param([("a", (2, 3)), ("b", (2, 3)), ("a", (2, 3))], r"not expected a \(twice\)", id="twice"),
])  # fmt: skip
def test_weight_map_complains_by_name(refs: list[tuple[str, tuple[int, ...]]], complaint: str) -> None:
    weights, _ = _map()
    with pytest.raises(CheckpointError, match=complaint):
        weights.load([TensorRef(name, torch.zeros(shape)) for name, shape in refs], _ignore)


def test_long_complaints_are_counted() -> None:
    weights = WeightMap()
    for index in range(30):
        weights.add(f"w{index:02}", (1,), _ignore)
    with pytest.raises(CheckpointError, match=r"w00, .*w07 and 22 more"):
        weights.load([], _ignore)


def test_tensor_refs_narrow_unread() -> None:
    ref = TensorRef("w", torch.arange(12.0).view(3, 4).bfloat16())
    part = ref.narrow(0, 1, 2).narrow(1, 0, 3)
    assert (part.shape, part.encoding) == ((2, 3), "bfloat16")
    assert part.dense(torch.float32).tolist() == [[4, 5, 6], [8, 9, 10]]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rope_table_that_grew_has_the_bits_of_one_made_at_once(threads: int) -> None:
    spec, longest = RopeSpec(20, 1e6), 9000
    frequencies, _ = inverse_frequencies(spec)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        angles = torch.outer(torch.arange(longest, dtype=torch.float32), frequencies)
        rotary = Rotary(spec, longest, torch.float32, "cpu")
        for position in (0, 4095, 4096, 8999, 17):
            cos, sin = rotary.rows(torch.tensor([position]))
            assert torch.equal(cos[0], angles.cos()[position])
            assert torch.equal(sin[0], angles.sin()[position])
        cos, sin = rotary.rows(torch.arange(longest))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(cos, angles.cos())
    assert torch.equal(sin, angles.sin())
    with pytest.raises(IndexError):
        rotary.rows(torch.tensor([longest]))


def test_a_rope_table_takes_memory_for_the_positions_that_occurred() -> None:
    """A context of a million tokens costs nothing until somebody fills it."""
    process = psutil.Process()
    before = process.memory_info().rss
    rotary = Rotary(RopeSpec(128), 1 << 20, torch.float32, "cpu")
    assert rotary.resident_bytes == 2 * 4096 * 64 * 4
    assert process.memory_info().rss - before < 64 << 20
    rotary.rows(torch.tensor([5, 10_000]))
    assert rotary.resident_bytes == 2 * 3 * 4096 * 64 * 4

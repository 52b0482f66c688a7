"""Building blocks of models: plain objects over the chosen linear method, operations and backend."""

from llmkit.nn.attention import Attention, AttentionOutput
from llmkit.nn.embedding import Embedding, LMHead
from llmkit.nn.linear import Linear
from llmkit.nn.norm import RMSNorm
from llmkit.nn.ops import bind_ops, torch_ops
from llmkit.nn.rotary import ROPE_TYPES, RopeSpec, Rotary, inverse_frequencies
from llmkit.nn.weights import TensorRef, Vector, WeightMap, complain

__all__ = [
    "ROPE_TYPES",
    "Attention",
    "AttentionOutput",
    "Embedding",
    "LMHead",
    "Linear",
    "RMSNorm",
    "RopeSpec",
    "Rotary",
    "TensorRef",
    "Vector",
    "WeightMap",
    "bind_ops",
    "complain",
    "inverse_frequencies",
    "torch_ops",
]

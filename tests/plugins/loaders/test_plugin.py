from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from llmkit.contracts import CheckpointInfo, LoaderSpec, ModelFiles, TokenizerSpec
from llmkit.testing import bytes_tokenizer
from llmkit_loaders import plugin

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "huggingface_hub", "jinja2")


def registered(hook: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    found: dict[str, tuple[Any, dict[str, Any]]] = {}

    def register(name: str, factory: Any, **traits: Any) -> None:
        found[name] = (factory, traits)

    hook(register)
    return found


def test_the_entry_module_imports_nothing_heavy() -> None:
    code = f"import sys, llmkit_loaders.plugin; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_info_and_tokenizer_of_a_model_import_no_torch(tmp_path: Path) -> None:
    root = bytes_tokenizer.write(tmp_path)
    code = f"""
import sys
from llmkit.contracts import LoaderSpec, ModelFiles, TokenizerSpec
from llmkit_loaders.dummy import DummyLoader
from llmkit_loaders.fast_tokenizer import open_tokenizer
from llmkit_loaders.gguf_loader import GgufLoader
from llmkit_loaders.safetensors_loader import SafetensorsLoader
from llmkit.frontend.chat_template import ChatTemplate
files = ModelFiles({str(root)!r}, "m", "test")
info = DummyLoader(LoaderSpec(files)).info()
ChatTemplate(info.chat_template, open_tokenizer(TokenizerSpec(files, info))).render_ids([])
print([m for m in ("torch", "transformers") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sources_are_asked_in_this_order() -> None:
    assert list(registered(plugin.register_model_sources)) == ["local", "pkg", "alias", "hub"]


def test_who_reads_what(tmp_path: Path) -> None:
    loaders = registered(plugin.register_weight_loaders)
    root = bytes_tokenizer.write(tmp_path)

    def takers(path: Path) -> list[str]:
        spec = LoaderSpec(ModelFiles(str(path), "m", "test"))
        return [name for name, (_, traits) in loaders.items() if traits["refuses"](spec) is None]

    # A directory without weights is for whoever asks for made-up ones.
    assert takers(root) == ["dummy"]
    (root / "model.safetensors").write_bytes(b"")
    assert takers(root) == ["safetensors", "dummy"]
    assert takers(root / "m.gguf") == ["gguf", "dummy"]
    assert [name for name, (_, traits) in loaders.items() if traits.get("priority", 0) < 0] == ["dummy"]


def test_fast_comes_before_hf(tmp_path: Path) -> None:
    tokenizers = registered(plugin.register_tokenizers)
    assert tokenizers["fast"][1]["priority"] > tokenizers["hf"][1].get("priority", 0)
    spec = TokenizerSpec(ModelFiles(str(tmp_path), "m", "test"), CheckpointInfo("X", {}))
    assert "no tokenizer.json" in tokenizers["fast"][1]["refuses"](spec)
    (tmp_path / "vocab.json").write_text("{}")
    assert tokenizers["hf"][1]["refuses"](spec) is None

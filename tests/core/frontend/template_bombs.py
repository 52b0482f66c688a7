"""A program with little memory that renders every bomb; prints those that a sandbox let pass."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from llmkit import RequestError
from llmkit.contracts import CheckpointInfo, ModelFiles, TokenizerSpec
from llmkit.frontend.chat_template import ChatTemplate
from llmkit_loaders.fast_tokenizer import open_tokenizer
from tests.core.frontend.test_chat_template import BOMBS

SPARE_BYTES = 1 << 30


def main() -> None:
    tokenizer = open_tokenizer(TokenizerSpec(ModelFiles(sys.argv[1], "m", "1"), CheckpointInfo("X", {})))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_BYTES, mapped + SPARE_BYTES))
    for template in BOMBS:
        try:
            text = ChatTemplate(template, tokenizer).render([{"role": "user", "content": "x"}])
        except RequestError:
            continue
        except MemoryError:
            text = "the memory is full"
        print(f"{template[:200]}: {text[:80]!r}")


if __name__ == "__main__":
    main()

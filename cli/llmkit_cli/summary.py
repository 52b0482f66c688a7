"""What ``llmkit serve`` shows while it starts and once it is ready."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from llmkit.config import Config

SNIPPET = """\
curl {url}/v1/chat/completions -H 'Content-Type: application/json'{curl_key} \\
  -d '{{"model": "{model}", "temperature": 0,
       "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

{python} -c '
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
    temperature=0,
)
print(answer.choices[0].message.content)'
"""

POOLING_SNIPPET = """\
curl {url}/pooling{curl_key} -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "input": ["a cat", "a kitten"]}}'
"""
"""Of a model that embeds or classifies: the route that every one of them has."""


class Reporter:
    """Follows a front's states: progress while it starts, then a summary and two snippets, once."""

    def __init__(self, console: Console, config: Config) -> None:
        self._console = console
        self._config = config
        self._status: Status | None = None
        self._phase = ""

    def show(self, front: Any, url: str) -> None:
        """Called on every change of ``front.state``; cheap."""
        state = front.state
        if state.phase == "starting":
            text = state.detail + ("" if state.fraction is None else f" {state.fraction:.0%}")
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(text)
        elif self._status is not None:
            self._status.stop()
            self._status = None
        if state.phase == "ready" and self._phase != "ready":
            self._console.print(self._summary(front, url))
            self._console.print(self._snippets(front, url), markup=False, highlight=False, soft_wrap=True)
        elif state.phase == "draining" and self._phase != "draining":
            self._console.print(f"llmkit: {state.phase}: {state.detail}", markup=False, highlight=False)
        self._phase = state.phase

    def _summary(self, front: Any, url: str) -> Table:
        ready, model = front.ready, front.model
        table = Table(title="llmkit is ready", show_header=False, title_justify="left")
        table.add_column()
        table.add_column(overflow="fold")
        names = ", ".join(front.services.model.names)
        table.add_row("model", f"{names} ({model.info.architecture}, {model.files.path})")
        table.add_row("weights", f"{ready.weight_bytes / 2**20:.0f} MiB of memory")
        for choice in (*ready.choices, *front.choices):
            passed = "".join(f"\n  not {name}: {reason}" for name, reason in choice.passed_over)
            table.add_row(choice.kind.replace("_", " "), f"{choice.name} ({choice.why}){passed}")
        table.add_row(
            "KV cache",
            f"{ready.num_blocks} blocks of {ready.block_size} tokens, {ready.kv_bytes / 2**20:.0f} MiB",
        )
        table.add_row("context", f"{ready.max_model_len} tokens")
        for note in ready.notes:
            table.add_row("", note)
        if front.services.chat is None and front.services.pooler is None:
            table.add_row("chat", "off: the model has no chat template; give one with --chat-template")
        table.add_row("listening", url)
        return table

    def _snippets(self, front: Any, url: str) -> str:
        key = "YOUR_KEY" if self._config.server.needs_key else "none"
        header = " -H 'Authorization: Bearer YOUR_KEY'" if self._config.server.needs_key else ""
        snippet = SNIPPET if front.services.pooler is None else POOLING_SNIPPET
        return snippet.format(
            python=sys.executable, url=url, model=front.services.model.names[0], key=key, curl_key=header
        )

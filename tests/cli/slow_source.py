"""A plugin whose models take as long to come as a test wants: ``slow:DIRECTORY`` waits for DIRECTORY/here."""

from __future__ import annotations

import time
from pathlib import Path

from llmkit import hookimpl
from llmkit.contracts import ModelFiles, Progress, RegisterSource, SourceRequest
from llmkit.errors import ModelNotFound


class SlowSource:
    def claims(self, reference: str) -> bool:
        return False

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        progress("fetching the model", 0.4)
        marker = Path(request.reference) / "here"
        while not marker.exists():
            time.sleep(0.01)
        if marker.read_text() == "gone":
            raise ModelNotFound(f"MODEL slow:{request.reference}: it is gone")
        return ModelFiles(request.reference, "slow", "1")


@hookimpl
def register_model_sources(register: RegisterSource) -> None:
    register("slow", lambda options: SlowSource())

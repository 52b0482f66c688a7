"""An executor around an executor, which counts what its plans show."""

from __future__ import annotations

from collections import Counter
from typing import Any

from llmkit.contracts import Executor, ExecutorSpec, StepPlan
from llmkit.messages import PLACEHOLDER


class Watch:
    """Passes everything on to the executor of this name; owns what was seen of the plans."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events: Counter[str] = Counter()
        self.in_prefill: set[str] = set()
        """Requests whose last planned row was a piece of a prompt, and not its end."""

    def make(self, spec: ExecutorSpec, options: Any) -> Executor:
        return _Watched(self, spec.components.create("executor", self._name, spec))

    def see(self, plan: StepPlan) -> None:
        groups = max((len(row.new_blocks) for row in plan.rows), default=1)
        self.events["copy on write"] += len(plan.copies) // groups
        self.in_prefill.difference_update(plan.gone)
        for row in plan.rows:
            self.events["placeholder"] += PLACEHOLDER in row.token_ids
            if row.num_logits:
                self.in_prefill.discard(row.request_id)
            else:
                self.in_prefill.add(row.request_id)
                self.events["chunk"] += 1


class _Watched:
    def __init__(self, watch: Watch, inner: Executor) -> None:
        self._watch, self._inner = watch, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, plan: StepPlan) -> Any:
        self._watch.see(plan)
        return self._inner.execute(plan)

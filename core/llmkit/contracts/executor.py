"""Executors: where the engine's plans meet workers, in one process or many."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from llmkit.config import Config
from llmkit.contracts.model import ModelHook
from llmkit.contracts.weights import CheckpointInfo, ModelFiles, Progress
from llmkit.kv import KVLayout
from llmkit.messages import Choice, SamplePlan, StepPlan, StepResult, WorkerReport


class Components(Protocol):
    """The registered components, as far as those who choose among them need to know."""

    def choose(self, kind: str, requested: str, spec: Any) -> Choice:
        """Resolve a name or ``auto``.

        :raises UnknownName: nobody registered it. :raises StartupError: it refuses ``spec``.
        """

    def usable(self, kind: str, spec: Any) -> list[str]:
        """Every name that ``auto`` may take for ``spec``, best first; for kinds that combine several."""

    def create(self, kind: str, name: str, *specs: Any) -> Any:
        """Call its factory with ``specs`` (as its contract lists them) and its plugin's options."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """What an executor and its workers are made for. Since 0.1."""

    config: Config
    files: ModelFiles
    info: CheckpointInfo
    components: Components
    """This process's; a worker in another process loads its own from ``config.plugins``."""
    model_hooks: tuple[ModelHook, ...] = ()
    """``prepare_model`` of this process's plugins, in order; the same holds for them."""


class Executor(Protocol):
    """Runs steps. Called by one thread. Since 0.1."""

    max_concurrent_batches: int
    """Steps that may be in flight at once."""

    def start(self, progress: Progress) -> WorkerReport:
        """Start workers and load weights.

        :raises StartupError: in the words of whatever refused.
        """

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        """Cut the pool, bind the backend, warm up."""

    def execute(self, plan: StepPlan) -> Any:
        """Launch the forward; returns a handle for :meth:`sample`."""

    def sample(self, handle: Any, plan: SamplePlan) -> Future[StepResult]:
        """Follow up with sampling. A failed step is the future's exception, an EngineError."""

    def call(self, method: str, *args: Any) -> list[Any]:
        """Run a named worker method on every rank between steps; answers in rank order."""

    def check_health(self) -> None:
        """:raises EngineError: a worker is dead or stuck."""

    def shutdown(self, timeout_s: float) -> None:
        """Free everything; idempotent. Workers still busy after ``timeout_s`` are killed."""


class RegisterExecutor(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[ExecutorSpec, Any], Executor],
        *,
        refuses: Callable[[ExecutorSpec], str | None],
        priority: int = 0,
    ) -> None:
        """``auto`` takes the highest priority that does not refuse."""

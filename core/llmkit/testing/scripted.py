"""A plugin with an executor that has no model: it emits given tokens, fails or hangs as told.

``--plugin llmkit.testing.scripted --executor scripted`` serves any checkpoint directory that has a
tokenizer; ``--plugin-option llmkit.testing.scripted.script=FILE`` says what is emitted. The real
scheduler and block pool run, so API, parsers and failure handling are tested end to end. A script::

    {"rules": [{"match": "weather", "text": "It is sunny."},
               {"match": "boom", "text": "ab", "raise_at": 2}],
     "default": {"tokens": [104, 105]}}

The first rule whose ``match`` the prompt holds decides. What a rule writes as text is emitted a UTF-8
byte a token, as the byte tokenizer of ``llmkit.testing.bytes_tokenizer`` reads it. Without a rule the
prompt is emitted again, less what would end the request. After the last token comes an end of
sequence; a request that ignores it, or must be longer, gets the tokens from the start again.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llmkit import hookimpl
from llmkit.contracts import (
    Choice,
    ExecutorSpec,
    KVCacheSpec,
    KVLayout,
    NewRow,
    PositionLogprobs,
    Progress,
    RegisterExecutor,
    RowPlan,
    RowResult,
    SamplePlan,
    StepPlan,
    StepResult,
    TokenLogprob,
    WorkerReport,
)
from llmkit.errors import EngineError, StartupError

KV_BYTES = 1 << 20
BLOCK_BYTES = 64
WINDOW = 64
"""Of its second layer, so that a sliding group is in play."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests whose prompt holds ``match`` get."""

    match: str = ""
    """Text that the prompt's bytes hold; empty fits every prompt."""
    match_ids: tuple[int, ...] = ()
    """Token ids that the prompt holds in a row, beside ``match``."""
    text: str | tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    """Emitted after ``text``."""
    delay_ms: float = 0.0
    """Before each token."""
    raise_at: int | None = None
    """The step that should emit this token (from 0) fails."""
    hang_at: int | None = None
    """The step that should emit this token never ends."""
    obeys: bool = False
    """Where a mask leaves one token, that one comes instead of the script's; others are emitted as written,
    whatever the masks say."""

    @property
    def token_ids(self) -> list[int]:
        return [*"".join(self.text).encode(), *self.tokens]

    def fits(self, prompt: list[int]) -> bool:
        ids = list(self.match_ids)
        if not any(prompt[i : i + len(ids)] == ids for i in range(len(prompt) - len(ids) + 1)):
            return False
        return self.match.encode() in bytes(token for token in prompt if token < 256)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a :class:`ScriptedExecutor` does."""

    rules: tuple[Rule, ...] = ()
    default: Rule | None = None
    """For prompts that no rule fits; None emits the prompt again."""
    eos_id: int | None = None
    """Emitted at the end; None takes the first of the request's own end tokens."""
    vocab_size: int | None = None
    """None takes the checkpoint's, or 512 where it names none."""
    start_error: str | None = None
    """The start fails with these words."""


@dataclass(frozen=True)
class Options:
    """``--plugin-option llmkit.testing.scripted.NAME=VALUE``"""

    script: str = ""
    """Path of a JSON file with a :class:`Script`; empty emits every prompt again."""


@hookimpl
def register_executors(register: RegisterExecutor) -> None:
    register("scripted", _make, refuses=lambda spec: None, priority=-1)


def read_script(path: str | Path) -> Script:
    """:raises StartupError: the file cannot be read or says something else."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Script)
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"script {str(path)!r} cannot be read: {error}") from None


def _make(spec: ExecutorSpec, options: Options | None) -> ScriptedExecutor:
    script = read_script(options.script) if options is not None and options.script else Script()
    config = spec.config
    executor = ScriptedExecutor(script, block_size=config.cache.block_size)
    executor.vocab_size = script.vocab_size or spec.info.config.get("vocab_size") or executor.vocab_size
    executor.kv_bytes = config.cache.kv_cache_memory_bytes or KV_BYTES
    return executor


@dataclass(frozen=True, slots=True)
class _Row:
    new: NewRow
    rule: Rule
    tokens: list[int]
    """What it is to emit."""


class ScriptedExecutor:
    """Follows a :class:`Script`; also an executor for tests that need no process."""

    max_concurrent_batches = 1

    def __init__(self, script: Script | None = None, *, block_size: int = 16) -> None:
        self.script = script or Script()
        self.vocab_size = self.script.vocab_size or 512
        self.kv_bytes = KV_BYTES
        self._block_size = block_size
        self._rows: dict[str, _Row] = {}
        self._hung: list[Future[StepResult]] = []

    def start(self, progress: Progress) -> WorkerReport:
        progress("reading the script", 0.0)
        if self.script.start_error is not None:
            raise StartupError(self.script.start_error)
        rules = [*self.script.rules, *filter(None, [self.script.default])]
        if any(not 0 <= token < self.vocab_size for rule in rules for token in rule.token_ids):
            raise StartupError(f"the script has tokens beyond the vocabulary of {self.vocab_size}")
        progress("reading the script", 1.0)
        return WorkerReport(
            choices=(Choice("model", "script", "the scripted executor has no model"),),
            layers=(
                KVCacheSpec("full", self._block_size, BLOCK_BYTES, "scripted"),
                KVCacheSpec("sliding", self._block_size, BLOCK_BYTES, "scripted", window=WINDOW),
            ),
            kv_bytes=self.kv_bytes,
            kv_why="as the scripted executor says",
            weight_bytes=0,
            vocab_size=self.vocab_size,
            row_invariant=True,
        )

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        progress("warming up", 1.0)

    def execute(self, plan: StepPlan) -> StepPlan:
        for name in plan.gone:
            self._rows.pop(name, None)
        for new in plan.new:
            self._rows[new.request_id] = self._enter(new)
        return plan

    def sample(self, handle: StepPlan, plan: SamplePlan) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        sampled = [row for row in handle.rows if row.num_logits]
        delay_ms = max((self._rows[row.request_id].rule.delay_ms for row in sampled), default=0.0)
        if delay_ms:
            time.sleep(delay_ms / 1000)
        try:
            forced = _forced(plan)
            results, index = [], 0
            for row in sampled:
                results.append(self._sample(row, [forced.get(index + n) for n in range(row.num_logits)]))
                index += row.num_logits
        except EngineError as error:
            future.set_exception(error)
            return future
        if any(
            self._rows[row.request_id].rule.hang_at in self._positions(row, result)
            for row, result in zip(sampled, results, strict=True)
        ):
            self._hung.append(future)
            return future
        future.set_result(StepResult(plan.step, results))
        return future

    def call(self, method: str, *args: Any) -> list[Any]:
        """It sleeps and wakes up; there is nothing to give back."""
        if method in ("sleep", "wake_up"):
            return [None]
        raise EngineError(f"the scripted executor has no method {method!r}")

    def check_health(self) -> None:
        """It is always well."""

    def shutdown(self, timeout_s: float) -> None:
        for future in self._hung:
            future.cancel()
        self._hung.clear()
        self._rows.clear()

    def _enter(self, new: NewRow) -> _Row:
        prompt = new.token_ids[: new.num_prompt]
        rule = next((rule for rule in self.script.rules if rule.fits(prompt)), self.script.default)
        if rule is None:
            return _Row(new, Rule(), [token for token in prompt if token not in new.end_ids] or [0])
        return _Row(new, rule, rule.token_ids)

    def _first(self, row: RowPlan) -> int:
        """Which output token, from 0, the first of this row's logits samples."""
        return row.start + row.num_tokens - row.num_logits + 1 - self._rows[row.request_id].new.num_prompt

    def _positions(self, row: RowPlan, result: RowResult) -> range:
        first = self._first(row)
        return range(first, first + len(result.token_ids))

    def _sample(self, row: RowPlan, forced: list[int | None]) -> RowResult:
        """One token, and one more for each draft that it would have emitted itself."""
        state, first = self._rows[row.request_id], self._first(row)
        tokens: list[int] = []
        while len(tokens) <= len(row.drafts):
            position = first + len(tokens)
            if position == state.rule.raise_at:
                raise EngineError(f"the script says that token {position} fails")
            only = forced[len(tokens)] if state.rule.obeys else None
            tokens.append(self._token(state, position) if only is None else only)
            if tokens[-1:] != row.drafts[len(tokens) - 1 : len(tokens)]:
                break
        wanted = state.new.params.logprobs
        logprobs = None if wanted is None else [self._logprobs(token, wanted) for token in tokens]
        return RowResult(row.request_id, tokens, logprobs)

    def _token(self, state: _Row, position: int) -> int:
        ends = state.new.end_ids
        eos = self.script.eos_id if self.script.eos_id is not None else next(iter(ends), None)
        allowed = position >= state.new.params.min_tokens
        if position >= len(state.tokens) and eos is not None and eos in ends and allowed:
            return eos
        token = state.tokens[position % len(state.tokens)] if state.tokens else 0
        if token in ends and not allowed:
            return next(other for other in range(self.vocab_size) if other not in ends)
        return token

    def _logprobs(self, token: int, count: int) -> PositionLogprobs:
        """Made up: the sampled token is the likeliest, the following ids come after it."""
        ranked = [
            TokenLogprob((token + rank) % self.vocab_size, -0.125 * (rank + 1), rank + 1)
            for rank in range(max(count, 1))
        ]
        return PositionLogprobs(ranked[0], tuple(ranked[:count]))


def _forced(plan: SamplePlan) -> dict[int, int]:
    """Logits row -> the token that alone its mask allows."""
    if plan.masks is None:
        return {}
    bits = np.unpackbits(np.frombuffer(plan.masks, np.uint8), bitorder="little")
    rows = bits.reshape(len(plan.mask_rows), -1)
    found = zip(plan.mask_rows, rows, strict=True)
    return {index: int(row.argmax()) for index, row in found if row.sum() == 1}

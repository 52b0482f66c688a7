"""What crosses processes: msgspec structs, sent as msgpack over ipc sockets or kept in process.

Front -> engine: :class:`AddRequest`, :class:`AbortRequests`, :class:`Drain`, :class:`Call`. Engine -> front:
:class:`StartupStatus`, :class:`EngineReady`, :class:`StepOutputs`, :class:`CallAnswer`,
:class:`EngineFailed`. Compiling process -> front: :class:`GrammarAnswer`.
Engine -> worker: :class:`StepPlan`, :class:`SamplePlan`. Worker -> engine: :class:`WorkerReport`,
:class:`StepResult`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from llmkit.events import PositionLogprobs
from llmkit.kv import KVCacheSpec
from llmkit.pooling import Pooled, PoolingParams
from llmkit.types import FinishReason, SamplingParams

PLACEHOLDER = -1
"""In ``RowPlan.token_ids``: the token this row sampled last, which only the worker knows yet."""


# ---- front <-> engine ----


class CompiledGrammar(msgspec.Struct, frozen=True):
    """What constrains an answer, compiled and found affordable before the engine sees it."""

    backend: str
    """The grammar backend that made ``data`` and can load it."""
    data: bytes


class Thinking(msgspec.Struct, frozen=True):
    """How the reasoning of an answer is told from the rest of it, and how long it may be."""

    first: Literal["reasoning", "either", "answer"]
    """What the answer begins as; ``either``: it is reasoning if one of ``starts`` comes first."""
    end: tuple[int, ...]
    """Token ids that are written where the budget is used up; behind them a grammar begins."""
    ends: tuple[bytes, ...]
    """Texts of which each ends reasoning; the first is that of ``end``."""
    starts: tuple[bytes, ...] = ()
    """Texts of which each begins reasoning."""
    start: int | None = None
    """The one token that a start is: before a grammar, which does not know it, reasoning begins with no
    other."""
    again: bool = False
    """Reasoning may begin again within the answer."""
    blanks: int = 0
    """Newlines that may stand behind the end before a grammar begins: they are no part of the answer."""
    spelt: dict[int, bytes] = {}
    """Texts of the special tokens among all these."""
    answering: int = 1
    """So many of ``ends``, from the first on, are right before the answer: a grammar begins behind them."""
    budget: int | None = None
    """Most tokens of reasoning, without what begins and ends it; None: as many as the model likes."""


class GrammarAnswer(msgspec.Struct, frozen=True):
    """What the compiling process says to a :class:`~llmkit.types.StructuredOutput`: one of the two."""

    grammar: CompiledGrammar | None = None
    refusal: str | None = None
    """Why it cannot be honoured, in words for the client."""


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    """One choice of one request; ``n`` choices are ``n`` of these with the same prompt.

    Everything in it has been checked: ids against the embedding rows, lengths, ranges.
    """

    request_id: str
    """Unique in the life of the engine; made by the front, never the client's own."""
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    """Unsigned 64 bits; with ``choice`` and the position the key of all sampling noise."""
    max_tokens: int
    """Resolved against the context: prompt and output together never pass ``max_model_len``. 0 only
    with ``prompt_logprobs`` or ``pooling``: the prompt is computed and nothing follows."""
    eos_ids: tuple[int, ...] = ()
    """Ends of sequence; empty under ``ignore_eos``."""
    choice: int = 0
    priority: int = 0
    """Lower goes first, as in vLLM."""
    arrival_s: float = 0.0
    """Seconds since the epoch; policies compare them."""
    cache_salt: str | None = None
    cache_keys: tuple[tuple[str, bytes], ...] = ()
    """(plugin, key): part of the root of this request's prefix-cache keys."""
    plugin_data: dict[str, bytes] = {}
    """Plugin -> bytes for the workers."""
    leader: str | None = None
    """Id of the first choice of the same request: its prompt is computed once and shared."""
    caller: str = ""
    """Who asks, for policies that are fair among callers; empty: nobody in particular."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not be completed."""
    grammar: CompiledGrammar | None = None
    thinking: Thinking | None = None
    """Where the answer may have reasoning that a grammar or a budget has to know of."""
    pooling: PoolingParams | None = None
    """What the prompt is pooled for; it ends when that is done."""


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """The client went away or a stop string matched; unknown ids are ignored."""

    request_ids: list[str]


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """No more requests will come: finish those at hand within ``timeout_s``, abort the rest, exit."""

    timeout_s: float


SLEEP_LEVELS = (1, 2)
"""1: the KV cache sleeps. 2: the weights too, which are read from the checkpoint again."""
SLEEP_TAGS = ("weights", "kv_cache")
"""What sleeps, in the order in which it wakes up."""

CallTarget = Literal["engine", "workers"]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run a named method between steps; answered by a :class:`CallAnswer` with the same id."""

    call_id: int
    target: CallTarget
    method: str
    args: list[Any] = []


ToEngine = AddRequest | AbortRequests | Drain | Call


class Choice(msgspec.Struct, frozen=True):
    """Which component was chosen and why, for the start-up summary."""

    kind: str
    name: str
    why: str
    passed_over: tuple[tuple[str, str], ...] = ()
    """(name, reason) of every candidate that ``auto`` did not take."""


class StartupStatus(msgspec.Struct, frozen=True, tag="status"):
    """Where the start-up is; ``fraction`` from 0 to 1, or None where there is no telling."""

    phase: str
    fraction: float | None = None


class EngineStats(msgspec.Struct, array_like=True):
    """Counters after a step; totals since the engine started unless a gauge.

    A scheduler counts in one of its own and gives copies.
    """

    running: int = 0
    """Gauge: requests that hold blocks."""
    waiting: int = 0
    """Gauge."""
    blocks_total: int = 0
    """Gauge: without the null block."""
    blocks_held: int = 0
    """Gauge: referenced by a request."""
    steps: int = 0
    prompt_tokens: int = 0
    """Computed, without those from the cache."""
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    draft_tokens: int = 0
    """Proposed by a speculator and verified."""
    accepted_tokens: int = 0
    """Of those, the ones that the model would have sampled too."""
    forced_tokens: int = 0
    """Computed ahead because a grammar allowed nothing else."""
    offload_queries: int = 0
    """Prompt tokens looked up in the KV connector after the prefix cache."""
    offload_hits: int = 0
    """Prompt tokens loaded from there."""
    copied_blocks: int = 0
    """Copy-on-write: blocks copied because two requests went on from one."""


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The engine answers from now on."""

    max_model_len: int
    vocab_size: int
    """Embedding rows: valid token ids are below it."""
    num_blocks: int
    block_size: int
    kv_bytes: int
    weight_bytes: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()
    """Sentences for the summary, such as why the context is what it is."""
    stats: EngineStats = msgspec.field(default_factory=EngineStats)
    """Before the first step."""


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one step gave one request. The last one of a request has ``finish``."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token id that ended it; None for end of sequence. Included in ``token_ids``."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache when the request was first scheduled."""
    error: str | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    """Those of the next prompt tokens, from the second one on, in order and each once."""
    complete: bool = False
    """Ended with ``STOP`` since only an end token could follow in its grammar: the last token is text."""
    pooled: Pooled | None = None
    """With ``finish``, of a request that has ``pooling``."""
    scheduled_s: float = 0.0
    """When the request first was in a step, by ``time.monotonic()``, which is one clock for all processes of
    a machine; 0: never."""


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """All that one step gave."""

    outputs: list[StepOutput]
    stats: EngineStats


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine gives up; ``exit_code`` is what the process ends with. ``detail`` is a traceback."""

    message: str
    exit_code: int = 1
    detail: str = ""
    mendable: bool = False
    """By the user (a flag, a model, a machine too small): the traceback is for developers."""


class CallAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """What a :class:`Call` gave: a value, of a worker method one a rank; or why it failed."""

    call_id: int
    value: Any = None
    error: str | None = None


FromEngine = StartupStatus | EngineReady | StepOutputs | EngineFailed | CallAnswer


# ---- engine <-> worker ----


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A request enters a worker's batch: at first, or again after preemption."""

    request_id: str
    token_ids: list[int]
    """Prompt, then all output so far."""
    num_prompt: int
    params: SamplingParams
    seed: int
    choice: int
    end_ids: tuple[int, ...]
    """End-of-sequence and stop token ids, masked until ``min_tokens`` are out."""
    block_tables: list[list[int]]
    """A group each, all blocks held so far."""
    plugin_data: dict[str, bytes] = {}
    bad_words: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs_from: int = 1
    """First prompt position whose logprobs are still wanted, where ``params`` ask for any."""
    pooling: PoolingParams | None = None


class RowPlan(msgspec.Struct, frozen=True, array_like=True):
    """One request's part of a step: input tokens ``start`` to ``start + num_tokens``."""

    request_id: str
    start: int
    num_tokens: int
    num_logits: int
    """Last so many input tokens get logits and a sample: 0 within a prompt, 1 at its end and in
    decode, 1 + k with k draft tokens."""
    token_ids: list[int]
    """Tokens the worker has not been told, appended to the row's; may be PLACEHOLDER. Never drafts."""
    new_blocks: list[list[int]]
    """A group each, appended to the row's block table. Entries behind a sliding window go stale
    and are never read."""
    drafts: list[int] = []
    """Input of this step after the row's own tokens and no part of them: the worker samples after each
    and keeps what it sampled while that equals the next draft."""


class StepPlan(msgspec.Struct, frozen=True):
    """One forward. Applied in the order gone, transfers, copies, new, rows."""

    step: int
    rows: list[RowPlan]
    """Rows with ``num_tokens <= 1 + k`` first."""
    new: list[NewRow] = []
    gone: list[str] = []
    """Finished, aborted or preempted since the last plan."""
    copies: list[tuple[int, int]] = []
    """(source, destination) block ids, copied in every slot before the forward, as if all at once: no
    destination is a source or comes twice."""
    transfers: bytes = b""
    """For the worker's side of the KV connector, which alone knows what they mean."""


class SamplePlan(msgspec.Struct, frozen=True):
    """How to sample a step whose forward was launched."""

    step: int
    masks: bytes | None = None
    """int32 ``[len(mask_rows), ceil(vocab / 32)]``, bit set means allowed; None constrains nothing."""
    mask_rows: list[int] = []
    """Which logits rows of the step the masks belong to."""


NOTHING_ALLOWED = (
    "no token can be sampled: every one is masked (by a grammar, a used up thinking budget,"
    " allowed_token_ids, bad_words or min_tokens together) or has a logit of minus infinity"
)
"""A row's error where it is the request that leaves no token."""


class RowResult(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens of one request: ``accepted`` draft tokens and one more."""

    request_id: str
    token_ids: list[int]
    """Empty with ``error``."""
    logprobs: list[PositionLogprobs] | None = None
    error: str | None = None
    """Why no token could be sampled; ends this request alone."""
    prompt_logprobs: list[PositionLogprobs] | None = None
    """Of prompt positions ``start + 1`` to ``start + num_tokens`` (within the prompt, from the row's
    ``prompt_logprobs_from`` on), where the request asks."""
    pooled: Pooled | None = None
    """With the last token of a prompt that is pooled."""


class StepResult(msgspec.Struct, frozen=True):
    """What a step sampled: a row for each planned row with ``num_logits > 0``, with prompt logprobs or whose
    prompt was pooled, in that order."""

    step: int
    rows: list[RowResult]
    failed_loads: list[str] = []
    """Requests whose KV a connector could not load: computed from there on with KV that is not there."""


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker knows once its weights are in and before the pool is cut."""

    choices: tuple[Choice, ...]
    layers: tuple[KVCacheSpec, ...]
    """One per attention layer."""
    kv_bytes: int
    """Bytes this worker can give to the pool."""
    kv_why: str
    """How ``kv_bytes`` came about, in one clause."""
    weight_bytes: int
    vocab_size: int
    row_invariant: bool
    """Every chosen part is."""

"""The grammars of running requests: loaded aside, asked for masks, told what was sampled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from llmkit.contracts.grammar import Grammar, GrammarBackend, GrammarSpec, MaskRow
from llmkit.engine.constraint import Constraint, Ends
from llmkit.engine.thinking import ThinkingRules
from llmkit.lru import LruCache
from llmkit.messages import AddRequest, CompiledGrammar

MAX_LOADED = 64
MAX_LOADED_BYTES = 256 << 20
"""Grammars kept for requests to come, besides those in use; bytes of what they were loaded from."""
_LOADERS = 2


class GrammarManager:
    """Where each request with a grammar or a thinking budget is; owns that and the grammars they share.

    Used by the engine's thread; loading runs in threads of its own and touches nothing but the grammar it
    loads. A matcher stands behind the last token it was given by :meth:`accept`, so preemption does not
    concern it. Requests that it does not know are unconstrained.
    """

    def __init__(
        self, spec: Callable[[], GrammarSpec], backend: Callable[[str, GrammarSpec], GrammarBackend]
    ) -> None:
        """``spec`` is called once, in a thread, when the first grammar comes; ``backend`` makes by name."""
        self._backends = _Backends(spec, backend)
        self._loaded = LruCache[CompiledGrammar | None, Future[Grammar | None]](MAX_LOADED, MAX_LOADED_BYTES)
        self._loaders = ThreadPoolExecutor(_LOADERS, "load-grammar")
        self._loading: dict[str, Future[Grammar | None]] = {}
        self._done = threading.Event()
        self._states: dict[str, Constraint] = {}
        self._sources: dict[str, AddRequest] = {}

    # ---- life of a request ----

    def add(self, request: AddRequest) -> None:
        """Begin to load the request's grammar, where it has one, and the vocabulary."""
        if request.grammar is None and request.thinking is None:
            return
        self._sources[request.request_id] = request
        self._loading[request.request_id] = self._load(request.grammar)

    def ready(self, request_id: str) -> bool:
        """Whether the request may run: its grammar is loaded, or it has none.

        :raises ValueError: it could not be loaded; the request must end with these words.
        """
        loading = self._loading.get(request_id)
        if loading is None:
            return True
        if not loading.done():
            return False
        del self._loading[request_id]
        source = self._sources[request_id]
        try:
            grammar = loading.result()
            matcher = None if grammar is None else grammar.matcher()
        except Exception as error:  # a plugin's code: its words end this request alone
            self._loaded.pop(source.grammar)
            self.remove(request_id)
            raise ValueError(f"the grammar could not be loaded: {type(error).__name__}: {error}") from error
        ends, texts = self._backends.vocabulary
        rules = None
        if source.thinking is not None:
            rules = ThinkingRules(source.thinking, texts, grammar=matcher is not None)
        state = self._states[request_id] = Constraint(matcher, ends, rules)
        if state.failed:
            self.remove(request_id)
            raise ValueError(state.failed)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Until some added request's grammar is there that was not when this was called last.

        False after ``timeout_s`` without one.
        """
        if not self._done.wait(timeout_s):
            return False
        self._done.clear()
        return True

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self._states.pop(request_id, None)
        self._loading.pop(request_id, None)
        self._sources.pop(request_id, None)

    def shutdown(self) -> None:
        """Load nothing more; idempotent."""
        self._loaders.shutdown(wait=False, cancel_futures=True)

    # ---- a step ----

    def propose(self, request_id: str, drafts: Sequence[int], most: int) -> tuple[list[int], int]:
        """What to compute ahead: forced tokens first, then ``drafts`` as far as the grammar allows them.

        A token is forced where nothing else may come. Drafts that differ from what is forced, and
        all after an end token, are dropped.

        :returns: at most ``most`` tokens, and how many of them are forced.
        """
        state = self._states.get(request_id)
        if state is None:
            return list(drafts[:most]), 0
        return state.propose(drafts, most)

    def masks(self, rows: Sequence[tuple[str, Sequence[int]]]) -> tuple[bytes | None, list[int]]:
        """The step's masks as ``SamplePlan`` has them: ``(masks, mask_rows)``.

        ``rows`` are all requests with logits in the order of the plan, each with its drafts, so it has
        ``1 + len(drafts)`` logits rows.
        """
        if not self._states:
            return None, []
        found: list[MaskRow] = []
        indices: list[int] = []
        first = 0
        for request_id, drafts in rows:
            state = self._states.get(request_id)
            if state is not None:
                for index, mask in enumerate(state.rows(drafts), first):
                    if mask is not None:
                        found.append(mask)
                        indices.append(index)
            first += 1 + len(drafts)
        return (np.stack(found).tobytes(), indices) if found else (None, [])

    def accept(self, request_id: str, tokens: Sequence[int]) -> int | None:
        """Go on by sampled tokens.

        :returns: the index of the token after which the text is complete and nothing but an end token
            could follow (or which is that end token); None while the request goes on.
        :raises ValueError: a token that the masks did not allow; the request must end with an error.
        """
        state = self._states.get(request_id)
        return None if state is None else state.accept(tokens)

    # ---- loading ----

    def _load(self, source: CompiledGrammar | None) -> Future[Grammar | None]:
        loading = self._loaded.get(source)
        if loading is None:
            loading = self._loaders.submit(self._backends.load, source)
            self._loaded.put(source, loading, 0 if source is None else len(source.data))
        loading.add_done_callback(lambda _: self._done.set())  # at once where it is there already
        return loading


class _Backends:
    """The vocabulary and the backends made for it, each on first use; shared by the loading threads."""

    def __init__(
        self, spec: Callable[[], GrammarSpec], backend: Callable[[str, GrammarSpec], GrammarBackend]
    ) -> None:
        self._make_spec = spec
        self._make_backend = backend
        self._lock = threading.Lock()
        self._spec: GrammarSpec | None = None
        self._made: dict[str, GrammarBackend] = {}
        self._ends: Ends | None = None

    @property
    def vocabulary(self) -> tuple[Ends, Sequence[bytes]]:
        """End tokens, and each token's text; once something was loaded."""
        assert self._spec is not None, "something was loaded"
        assert self._ends is not None, "it comes with the vocabulary"
        return self._ends, self._spec.token_bytes

    def load(self, source: CompiledGrammar | None) -> Grammar | None:
        """The grammar, where there is one, and in any case the vocabulary."""
        with self._lock:
            if self._spec is None:
                self._spec = self._make_spec()
                self._ends = Ends.of(self._spec)
            if source is None:
                return None
            if source.backend not in self._made:
                self._made[source.backend] = self._make_backend(source.backend, self._spec)
        return self._made[source.backend].load(source.data)

"""The grammars of running requests: loaded aside, asked for masks, told what was sampled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from llmkit.contracts.grammar import Grammar, GrammarBackend, GrammarMatcher, GrammarSpec, MaskRow
from llmkit.engine.thinking import Phase, Place, ThinkingRules
from llmkit.lru import LruCache
from llmkit.messages import AddRequest, CompiledGrammar

MAX_LOADED = 64
MAX_LOADED_BYTES = 256 << 20
"""Grammars kept for requests to come, besides those in use; bytes of what they were loaded from."""
MAX_MASK_S = 1.0
"""CPU time of one mask: a grammar that takes longer delays everybody and ends its request."""
MAX_AHEAD = 16
"""Forced tokens put in front of a step's drafts."""
_LOADERS = 2
_WORD_BITS = 32


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
        self._states: dict[str, _State] = {}
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
        state = self._states[request_id] = _State(matcher, ends, rules)
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


@dataclass(frozen=True, slots=True)
class Ends:
    """The end tokens of a vocabulary, as ids and as a mask row; and those of nothing but newlines."""

    ids: frozenset[int]
    mask: MaskRow
    newlines: Mapping[int, int]
    """How many each is."""

    @staticmethod
    def of(spec: GrammarSpec) -> Ends:
        bits = np.zeros(-(-spec.vocab_size // _WORD_BITS) * _WORD_BITS, np.uint8)
        bits[list(spec.eos_ids)] = 1
        newlines = {i: len(text) for i, text in enumerate(spec.token_bytes) if text and not text.strip(b"\n")}
        return Ends(frozenset(spec.eos_ids), np.packbits(bits, bitorder="little").view("<i4"), newlines)


@dataclass(slots=True)
class _State:
    """One request's place in its reasoning and its grammar; either may be missing.

    ``path`` is what was looked at beyond the accepted tokens, ``ahead`` the masks behind each of it, the
    first behind none; so no mask is computed twice. None in ``ahead`` constrains nothing.
    """

    matcher: GrammarMatcher | None
    ends: Ends
    rules: ThinkingRules | None
    place: Place = Place(Phase.ANSWERING)
    """Of the last accepted token, or of the last one looked at while looking ahead."""
    failed: str = ""
    """Why it can give no mask any more; told by the next ``accept``."""
    path: list[int] = field(default_factory=list)
    ahead: list[MaskRow | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rules is not None:
            self.place = self.rules.first()
        self.ahead = [self._mask()]

    def accept(self, tokens: Sequence[int]) -> int | None:
        if self.failed:
            raise ValueError(self.failed)
        seen = 0
        for index, token in enumerate(tokens):
            constrained = self._constrained
            if constrained and token in self.ends.ids and _allows(self.ahead[seen], token):
                return index
            if not self._step(token):
                raise ValueError(
                    self.failed or f"token {token} came where {self._forbidding} does not allow it"
                )
            seen = self._follow(seen, token)
            if self.failed:
                raise ValueError(self.failed)
            if self._constrained and self._complete(self.ahead[seen]):
                return index
        del self.path[:seen], self.ahead[:seen]
        return None

    def propose(self, drafts: Sequence[int], most: int) -> tuple[list[int], int]:
        self._forget()
        place, taken = self.place, 0
        given, forced = list(drafts), 0
        while len(self.path) < most and not self.failed:
            token = self._only(self.ahead[-1]) if len(self.path) == forced < MAX_AHEAD else None
            if token is not None:
                forced += 1
                given = given[1:] if given[:1] == [token] else []
            elif given and self._may_draft(given[0]):
                token = given.pop(0)
            else:
                break
            knows = self._known_to_grammar(token)
            if not self._step(token):
                break
            taken += knows
            self.path.append(token)
            self.ahead.append(self._mask())
        self._back(taken, place)
        return list(self.path), min(forced, len(self.path))

    def rows(self, drafts: Sequence[int]) -> Sequence[MaskRow | None]:
        """Masks of the next token and of that behind each draft; behind a draft that may not come, where
        no sample counts, the end tokens'.
        """
        if self.path[: len(drafts)] != list(drafts):
            self._walk(drafts)
        return self.ahead[: 1 + len(drafts)]

    @property
    def _constrained(self) -> bool:
        """Whether the grammar says what comes next."""
        return self.matcher is not None and self.place.constrained

    def _walk(self, drafts: Sequence[int]) -> None:
        self._forget()
        place, taken, lost = self.place, 0, False
        for token in drafts:
            knows = self._known_to_grammar(token)
            lost = lost or (self._constrained and token in self.ends.ids) or not self._step(token)
            taken += knows and not lost
            self.path.append(token)
            self.ahead.append(self.ends.mask if lost else self._mask())
        self._back(taken, place)

    def _follow(self, seen: int, token: int) -> int:
        """One further along ``path`` where it went by ``token``, else along a new one."""
        if self.path[seen : seen + 1] != [token]:
            del self.path[seen:], self.ahead[seen + 1 :]
            self.path.append(token)
            self.ahead.append(self._mask())
        return seen + 1

    def _forget(self) -> None:
        del self.path[:], self.ahead[1:]

    def _may_draft(self, token: int) -> bool:
        """Whether a guess may be looked at: an end of the grammar's text is nothing to go on from."""
        return _allows(self.ahead[-1], token) and not (self._constrained and token in self.ends.ids)

    def _known_to_grammar(self, token: int) -> bool:
        """Whether the grammar is to be told of ``token``, which comes next."""
        blank = self.ends.newlines.get(token, self.place.blanks + 1) <= self.place.blanks
        return self._constrained and not blank and not self._starts(token)

    def _starts(self, token: int) -> bool:
        """Whether it begins reasoning before the grammar."""
        return self.rules is not None and self.place.phase is Phase.OPENING and token == self.rules.start

    def _step(self, token: int) -> bool:
        """Go on by one token; False, and nothing changed, where it may not come."""
        if self._known_to_grammar(token):
            if not self._take(token):
                return False
        elif self.rules is not None and self.rules.forced(self.place) not in (None, token):
            return False
        if self.rules is not None:
            self.place = self.rules.after(self.place, token)
        return True

    def _take(self, token: int) -> bool:
        assert self.matcher is not None, "it constrains"
        try:
            return self.matcher.accept(token)
        except Exception as error:  # noqa: BLE001 - a plugin's code: ends this request alone
            self.failed = f"the grammar failed: {type(error).__name__}: {error}"
            return False

    def _back(self, count: int, place: Place) -> None:
        self.place = place
        try:
            if count and self.matcher is not None:
                self.matcher.rollback(count)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed = f"the grammar failed: {type(error).__name__}: {error}"

    @property
    def _forbidding(self) -> str:
        return "the grammar" if self._constrained else "the end of reasoning"

    def _mask(self) -> MaskRow | None:
        """What may come next; None for anything."""
        if self.rules is not None and (forced := self.rules.forced(self.place)) is not None:
            return _with(np.zeros_like(self.ends.mask), forced)
        if not self._constrained:
            return None
        mask = self._grammar_mask()
        if self.rules is None or self.failed:
            return mask
        if self.place.phase is Phase.OPENING and self.rules.start is not None:
            return _with(mask, self.rules.start)
        if self.place.blanks:
            return _with(mask, *(i for i, count in self.ends.newlines.items() if count <= self.place.blanks))
        return mask

    def _grammar_mask(self) -> MaskRow:
        """Where the grammar is now; the end tokens' once it has failed."""
        assert self.matcher is not None, "it constrains"
        mask = np.zeros_like(self.ends.mask)
        began_s = time.thread_time()
        try:
            self.matcher.fill_mask(mask)
        except Exception as error:  # noqa: BLE001 - a plugin's code: ends this request alone
            self.failed = f"the grammar failed: {type(error).__name__}: {error}"
        else:
            if time.thread_time() - began_s > MAX_MASK_S:
                self.failed = "the grammar is too costly: one step of it takes more than a second"
        return self.ends.mask if self.failed else mask

    def _complete(self, mask: MaskRow | None) -> bool:
        """Whether an end token may come and nothing else."""
        if mask is None:
            return False
        return bool((mask & self.ends.mask).any()) and not (mask & ~self.ends.mask).any()

    def _only(self, mask: MaskRow | None) -> int | None:
        """The one token that ``mask`` allows, unless it is an end token or there are others."""
        if mask is None:
            return None
        words = np.flatnonzero(mask)
        if len(words) != 1:
            return None
        word = int(mask[words[0]]) & 0xFFFFFFFF
        if word & (word - 1):
            return None
        token = int(words[0]) * _WORD_BITS + word.bit_length() - 1
        return None if token in self.ends.ids else token


def _allows(mask: MaskRow | None, token: int) -> bool:
    return mask is None or bool(int(mask[token // _WORD_BITS]) >> token % _WORD_BITS & 1)


def _with(mask: MaskRow, *tokens: int) -> MaskRow:
    for token in tokens:
        mask.view(np.uint32)[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
    return mask

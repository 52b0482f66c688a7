"""Where one request is in its reasoning and its grammar: what may come next, and what is sure to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmkit.contracts.grammar import GrammarMatcher, GrammarSpec, MaskRow
from llmkit.engine.thinking import Phase, Place, ThinkingRules

MAX_MASK_S = 1.0
"""CPU time of one mask: a grammar that takes longer delays everybody and ends its request."""
MAX_AHEAD = 16
"""Forced tokens put in front of a step's drafts."""
_WORD_BITS = 32


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
class Constraint:
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

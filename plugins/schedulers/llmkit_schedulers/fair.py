"""Deficit round-robin among callers, counted in tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmkit.contracts import RequestView, SchedulingPolicy

FIRST_GUESS = 256
"""Output tokens expected of a caller of whom no request has ended yet."""
MAX_IDLE_CALLERS = 4096
"""Callers without requests whose deficit is remembered."""


class Fair(SchedulingPolicy):
    """Callers take turns, and each turn costs the tokens it takes; owns every caller's account.

    Round-robin with a deficit counter gives a request its turn once its caller's earlier ones are paid
    for. Counting rounds in tokens, that turn is known when the request comes: it is what its caller has
    spent, or what those who run now have if that is more, for turns not taken are not saved up. So the
    turns are keys of an ordinary queue (start-time fair queueing, Goyal et al. 1996), whatever the
    numbers of callers and requests.

    How long an answer gets nobody knows before; it is charged as the caller's last ones were, and what
    it really took is settled when it ends. A preempted request keeps its turn and pays once.
    """

    def __init__(self) -> None:
        self._now = 0
        """The latest turn that has started."""
        self._accounts: dict[str, _Account] = {}
        self._idle: OrderedDict[str, _Account] = OrderedDict()

    def key(self, request: RequestView) -> tuple[int, int]:
        return self._turn(request).start, request.order

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        self._now = max(self._now, self._turn(request).start)
        return True

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(running, key=self.key)

    def ended(self, request: RequestView) -> None:
        account = self._accounts[request.caller]
        turn = account.turns.pop(request.request_id)
        account.spent += request.num_prompt_tokens + request.num_output_tokens - turn.charge
        account.guess += (request.num_output_tokens - account.guess) // 4
        if not account.turns:
            self._idle[request.caller] = self._accounts.pop(request.caller)
            if len(self._idle) > MAX_IDLE_CALLERS:
                self._idle.popitem(last=False)

    def _turn(self, request: RequestView) -> _Turn:
        account = self._accounts.get(request.caller)
        if account is None:
            idle = request.caller in self._idle
            account = self._idle.pop(request.caller) if idle else _Account()
            self._accounts[request.caller] = account
        turn = account.turns.get(request.request_id)
        return turn or account.take_turn(request, self._now)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request's."""

    start: int
    charge: int
    """Tokens its caller paid ahead for it."""


@dataclass(slots=True)
class _Account:
    """One caller's; amounts in tokens, as turns count them."""

    spent: int = 0
    guess: int = FIRST_GUESS
    """Output tokens of its next request."""
    turns: dict[str, _Turn] = field(default_factory=dict)
    """Of its requests that have not ended, in order."""

    def take_turn(self, request: RequestView, now: int) -> _Turn:
        self.spent = max(self.spent, now)
        # Not before the caller's own earlier ones, even if what these were charged was too much.
        last = next(reversed(self.turns.values())).start if self.turns else 0
        charge = request.num_prompt_tokens + min(request.max_tokens, self.guess)
        turn = self.turns[request.request_id] = _Turn(max(self.spent, last), charge)
        self.spent += charge
        return turn

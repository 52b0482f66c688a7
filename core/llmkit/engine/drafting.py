"""Who is asked for drafts, how many find room in a step, and how often it is worth to ask."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts.scheduler import Drafter, Drafts
from llmkit.contracts.speculator import DraftRequest
from llmkit.engine.kv_manager import KVManager
from llmkit.engine.request import Request
from llmkit.messages import AddRequest

NO_DRAFTS = Drafts([], 0)
MAX_MISSES = 3


class Drafting:
    """The scheduler's use of a drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def serves(self, request: AddRequest) -> bool:
        return self._drafter.serves(request)

    def forget(self, request: Request) -> None:
        """It ended or was preempted."""
        self._drafter.forget([request.request_id])

    def take(
        self, decodes: Sequence[Request], kv: KVManager, budget: int, spare_blocks: int
    ) -> dict[Request, Drafts]:
        """Drafts of ``budget`` tokens at most, in blocks that no next token needs."""
        asked = [
            request
            for request in decodes
            if request.may_draft and request.room > 1 and not request.num_awaited
        ]
        taken: dict[Request, Drafts] = {}
        if not asked or budget < 1:
            return taken
        proposed = self._drafter.propose([_draft_request(request) for request in asked])
        for request, drafts in zip(asked, proposed, strict=True):
            known = len(request.tokens)
            own = kv.missing(request, known)
            count = min(len(drafts.tokens), request.room - 1, budget)
            while count > 0 and kv.missing(request, known + count) - own > spare_blocks:
                count -= 1
            _pace(request, hit=count > 0)
            if count > 0:
                budget -= count
                spare_blocks -= kv.missing(request, known + count) - own
                taken[request] = Drafts(drafts.tokens[:count], min(drafts.num_forced, count))
        return taken


def waive(request: Request) -> bool:
    """Whether it goes on without drafts for now, rather than wait for a result to be asked with."""
    if not request.draft_pause:
        return False
    request.draft_pause -= 1
    return True


def _pace(request: Request, *, hit: bool) -> None:
    """The more often there were none, the longer until it waits again."""
    request.draft_misses = 0 if hit else min(request.draft_misses + 1, MAX_MISSES)
    request.draft_pause = 0 if hit else (1 << request.draft_misses) - 1


def _draft_request(request: Request) -> DraftRequest:
    source = request.source
    return DraftRequest(
        request_id=source.request_id,
        token_ids=request.tokens,
        num_prompt=len(source.prompt_ids),
        most=request.room - 1,
        params=source.params,
        seed=source.seed,
        choice=source.choice,
        scope=request.root,
    )

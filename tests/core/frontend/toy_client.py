"""A front's generator over a client that is no engine: it keeps what it is sent and answers as it is told."""

from __future__ import annotations

import asyncio

from llmkit.config import Config, ModelConfig, SchedulerConfig, ServerConfig
from llmkit.contracts import EngineReady, EngineStats, SamplingParams, StepOutput
from llmkit.errors import EngineDead
from llmkit.frontend.generate import FrontGenerator
from llmkit.frontend.prepare import PrepareHook, Preparer
from llmkit.frontend.requests import Limits
from llmkit.frontend.services import FrontModel
from llmkit.types import FinishReason
from tests.core.frontend.toy_tokenizers import Bytes

READY = EngineReady(64, 300, 10, 16, 1, 1, ())


class Stream:
    """Gives the outputs it was made with, then waits for ever, like an engine under way."""

    def __init__(self, request, outputs, aborted):
        self.request = request
        self._outputs = list(outputs)
        self._aborted = aborted

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._outputs:
            await asyncio.Event().wait()
        return self._outputs.pop(0)

    def ready(self):
        return ()

    async def aclose(self):
        self._aborted.append(self.request.request_id)


class Client:
    """An EngineClient that keeps what it is sent; ``answer`` makes a request's outputs."""

    ready = READY
    stats = EngineStats()

    def __init__(self, answer=lambda request: ()):
        self.requests, self.aborted = [], []
        self.answer = answer
        self.dead = False

    def stream(self, request):
        if self.dead:
            raise EngineDead("gone")
        self.requests.append(request)
        return Stream(request, self.answer(request), self.aborted)

    async def abort(self, request_ids):
        raise AssertionError("not used")

    async def call(self, method, *args):
        raise AssertionError("not used")


def whole(request):
    return [StepOutput(request.request_id, [97] * request.max_tokens, finish=FinishReason.LENGTH)]


def make(
    client,
    *hooks,
    deadline_s=5.0,
    seed=0,
    defaults=None,
    tokenizer=None,
    processors=None,
    server=None,
    **scheduler,
):
    config = Config(
        model=ModelConfig(seed=seed),
        scheduler=SchedulerConfig(**scheduler),
        server=server or ServerConfig(),
    )
    model = FrontModel(tokenizer or Bytes(), None, defaults or {}, (256, 7, 400))
    preparer = Preparer([PrepareHook(*hook) for hook in hooks], deadline_s, processors)
    return FrontGenerator(client, model.tokenizer, Limits.of(READY, model, seed), config, preparer)


async def submitted(params=None, *hooks, prompt=(1, 2), context=None, **options):
    client = Client(whole)
    generation = await make(client, *hooks, **options).submit(prompt, params or SamplingParams(), context)
    await generation.aclose()
    return client.requests

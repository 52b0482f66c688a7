"""CPU time of the front process for one engine message, without HTTP; medians in milliseconds.

What is timed is the event loop's thread from the arrival of a message until every request's text is in its
consumer's hands: receive, decode, queue, wake, detokenize, look for stop strings, make events.
Everything is the real thing but the engine, which sends messages made beforehand.

    python bench/front_cost.py [--rows 64,256,1000] [--steps 100] [--stops 2] [--profile]
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop
from cost import Stopwatch, make_parser

from llmkit.assemble.model import open_frontend, open_model
from llmkit.config import Config, ModelConfig, SchedulerConfig
from llmkit.contracts import Generation, SamplingParams, Tokens
from llmkit.engine.process import EngineSockets
from llmkit.frontend.client_mp import SocketEngineClient
from llmkit.frontend.generate import FrontGenerator
from llmkit.frontend.prepare import Preparer
from llmkit.frontend.requests import Limits
from llmkit.frontend.services import FrontModel
from llmkit.messages import AddRequest, EngineStats, StepOutput, StepOutputs
from llmkit.plugins import load_plugins

TEXT = (
    "The harbour was quiet at dawn. Somebody had left a lamp burning in the café window; its light lay on "
    "the water in long, broken strips. “You're early,” she said - it was 5:40 - and went on counting crates. "
)
STOPS = ("\n\nUser:", "</answer>", "<|end|>", "###")


class Consumers:
    """One task a request that takes its events, as a route does; knows when all have had their token."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._left = 0
        self._all = asyncio.Event()
        self._tasks = [asyncio.create_task(self._consume(generation)) for generation in generations]

    async def one_step(self) -> None:
        self._left = len(self._tasks)
        self._all.clear()
        await self._all.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _consume(self, generation: Generation) -> None:
        async for _, event in generation:
            if isinstance(event, Tokens):
                self._left -= 1
                if self._left == 0:
                    self._all.set()


async def run(rows: int, steps: int, stops: int, model: FrontModel, profile: bool) -> tuple[float, float]:
    """Median and 90th percentile of a message's CPU time, ms."""
    with tempfile.TemporaryDirectory() as directory:
        client = SocketEngineClient(Path(directory))
        engine = EngineSockets(directory)
        config = Config(scheduler=SchedulerConfig(max_num_seqs=rows))
        limits = Limits(max_model_len=8192, vocab_size=model.tokenizer.vocab_size, eos_ids=(0,))
        generator = FrontGenerator(client, model.tokenizer, limits, config, Preparer(()))
        params = SamplingParams(max_tokens=4096, stop=STOPS[:stops])
        generations = [await generator.submit("Once upon a time", params) for _ in range(rows)]
        consumers = Consumers(generations)
        names: list[str] = []
        while len(names) < rows:
            await asyncio.sleep(0.01)
            names += [m.request_id for m in engine.receive(0) if isinstance(m, AddRequest)]
        ids = await generator.tokenize(TEXT, add_special_tokens=False)
        watch = Stopwatch(profile)
        for step in range(steps):
            outputs = [StepOutput(name, [ids[(step + at) % len(ids)]]) for at, name in enumerate(names)]
            message = StepOutputs(outputs, EngineStats(running=rows, steps=step))
            waiter = asyncio.create_task(consumers.one_step())
            await asyncio.sleep(0)
            engine.send(message)
            with watch.lap():
                await waiter
        await consumers.stop()
        await client.close()
        engine.close()
        return watch.sum_up()


def main() -> None:
    parser = make_parser(__doc__, steps=100)
    parser.add_argument("--stops", type=int, default=2, help=f"stop strings a request, up to {len(STOPS)}")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer")
    arguments = parser.parse_args()
    config = Config(model=ModelConfig(model=arguments.model))
    registry = load_plugins(config.plugins).registry
    model = open_frontend(config, open_model(config, registry, lambda phase, fraction: None), registry)
    print(f"{'requests':>8}{'median':>9}{'p90':>9}{'us a token':>12}")
    for rows in arguments.rows:
        median, p90 = uvloop.run(run(rows, arguments.steps, arguments.stops, model, arguments.profile))
        print(f"{rows:>8}{median:>9.2f}{p90:>9.2f}{median * 1e3 / rows:>12.2f}", flush=True)


if __name__ == "__main__":
    main()

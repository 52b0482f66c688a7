"""CPU time of the engine process for a decode step, without a model; medians in milliseconds.

What is timed is all that the engine process does in a step besides calling the executor: plan, book the
results, encode the message to the front. The executor is a fake one whose own time is taken off.

    python bench/engine_cost.py [--rows 64,256,1000] [--waiting 0,100000] [--steps 200] [--policy fcfs]
"""

from __future__ import annotations

import msgspec
from cost import Stopwatch, make_parser, numbers

from llmkit.config import CacheConfig, Config, SchedulerConfig
from llmkit.contracts import AddRequest, SamplingParams
from llmkit.engine.process import calm_collector
from llmkit_cli.bench.scheduler_engine import StepCost, build_simulated

CONTEXT = 4096
PROMPT = 256
MAX_TOKENS = 2048


def make_request(number: int) -> AddRequest:
    return AddRequest(
        request_id=f"cmpl-{number:032d}-0",
        prompt_ids=[number % 30_000, *[7] * (PROMPT + number % 16)],
        params=SamplingParams(temperature=0.7, top_p=0.9),
        seed=number,
        max_tokens=MAX_TOKENS,
        eos_ids=(2,),
        arrival_s=float(number),
        caller=f"caller-{number % 10}",
    )


def run(rows: int, waiting: int, steps: int, policy: str, profile: bool) -> tuple[float, float]:
    """Median and 90th percentile of a step's CPU time, ms."""
    config = Config(
        cache=CacheConfig(num_gpu_blocks_override=1 + (rows + 1) * CONTEXT // 16),
        scheduler=SchedulerConfig(
            max_num_seqs=rows, max_num_batched_tokens=8192, max_queue=1 << 20, scheduling_policy=policy
        ),
    )
    core, executor = build_simulated(config, StepCost(), context=CONTEXT)
    for number in range(rows + waiting):
        core.add(make_request(number))
    while executor.rows < rows or executor.tokens > rows:
        core.step()
    calm_collector()  # as the engine process does
    encoder = msgspec.msgpack.Encoder()
    watch = Stopwatch(profile, elsewhere=lambda: executor.own_s)
    for _ in range(steps):
        with watch.lap():
            encoder.encode(core.step())
        assert executor.rows == rows, f"{executor.rows} of {rows} rows in a step"
    core.abort_all()
    return watch.sum_up()


def main() -> None:
    parser = make_parser(__doc__, steps=200)
    parser.add_argument("--waiting", type=numbers, default=[0, 100_000])
    parser.add_argument("--policy", default="fcfs")
    arguments = parser.parse_args()
    print(f"{'running':>8}{'waiting':>9}{'median':>9}{'p90':>9}{'us a row':>10}")
    for rows in arguments.rows:
        for waiting in arguments.waiting:
            median, p90 = run(rows, waiting, arguments.steps, arguments.policy, arguments.profile)
            print(f"{rows:>8}{waiting:>9}{median:>9.2f}{p90:>9.2f}{median * 1e3 / rows:>10.2f}", flush=True)


if __name__ == "__main__":
    main()

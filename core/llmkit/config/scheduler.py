"""What a step may hold and who goes first."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option, parse_count


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and the queue."""

    scheduler: str = option("continuous", "scheduler", kind="scheduler")
    scheduling_policy: str = option("fcfs", "order of requests", kind="policy")
    max_num_seqs: int = option(64, "most requests in one step", minimum=1, maximum=4096)
    max_num_batched_tokens: int = option(
        512,
        "most tokens in one step; long prompts are computed in chunks of it",
        parse=parse_count,
        minimum=1,
        maximum=1 << 20,
    )
    async_scheduling: bool = option(False, "plan the next step while one runs, on a thread of its own")
    max_tokens_per_key: int | None = option(
        None,
        "most tokens, prompts and answers to come together, that one API key may have in flight; beyond it "
        "its client gets 429",
        parse=parse_count,
        minimum=1,
        maximum=1 << 40,
    )
    max_queue: int = option(
        1024, "most requests waiting; beyond it a client gets 429", minimum=1, maximum=1 << 20
    )

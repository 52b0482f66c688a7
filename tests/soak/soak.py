"""A real server under random load for a while: does anything leak, hang or change?"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from llmkit.testing.http import ServerProcess, read_metrics
from tests.differential import model as tiny_model
from tests.soak.load import Load

CLIENTS = 24
MOST_GROWTH = 0.05
"""Of memory and of open files, between the end of the warm-up and the end."""
WARM_UP = 0.2
"""Share of the time in which memory may still grow."""
IDLE_WITHIN_S = 30.0
COUNTERS = (
    "engine_steps_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_hits_total",
    "spec_decode_num_accepted_tokens_total",
    "kv_offload_hits_total",
)
FLAGS = (
    "--deterministic",
    f"--max-model-len={tiny_model.MAX_MODEL_LEN}",
    "--num-gpu-blocks-override=66",
    "--max-num-seqs=12",
    "--max-num-batched-tokens=64",
    "--max-queue=64",
    "--async-scheduling",
    "--speculator=ngram",
    "--prompt-lookup-min=1",
    "--kv-connector=offload",
    "--kv-offload-bytes=16MiB",
)
"""Few blocks, seats and tokens a step: so that there is queueing, preemption, chunking and offload."""


@dataclass
class Sample:
    """What the server's processes hold at one moment."""

    at_s: float
    memory_bytes: int
    files: int


@dataclass
class Report:
    """What a soak saw."""

    load: Load
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    """Gauges that should be zero once nobody asks, and are not."""
    counters: dict[str, float] = field(default_factory=dict)

    def growth(self, of: Callable[[Sample], float]) -> float:
        """From the highest value before the warm-up's end to the median of the last fifth."""
        warm = [of(sample) for sample in self.samples if sample.at_s <= WARM_UP * self.seconds]
        late = sorted(of(sample) for sample in self.samples if sample.at_s >= 0.8 * self.seconds)
        return late[len(late) // 2] / max(warm) - 1

    def faults(self) -> list[str]:
        """Everything that must not be; growth only where a soak was long enough to tell."""
        found = list(self.load.faults)
        found += [f"{name} is {value:g} with nobody asking" for name, value in self.left.items()]
        if self.seconds >= 300:
            for name, of in (("memory", memory), ("open files", files)):
                if self.growth(of) > MOST_GROWTH:
                    found.append(f"{name} grew by {self.growth(of):.1%}")
        return found


def memory(sample: Sample) -> float:
    return sample.memory_bytes


def files(sample: Sample) -> float:
    return sample.files


async def soak(
    directory: Path, seconds: float, *, seed: int = 0, say: Callable[[str], None] = print
) -> Report:
    """Start a server on a tiny model written to ``directory`` and load it for so long."""
    checkpoint = tiny_model.write(directory, "windowed")
    with ServerProcess([str(checkpoint), *FLAGS]) as server:
        report = Report(Load(server.url, random.Random(seed)), seconds)
        watching = asyncio.create_task(_watch(server, report, say))
        await report.load.run(CLIENTS, seconds)
        watching.cancel()
        await _idle(server.url, report)
        report.samples.append(_sample(server, seconds))
        code = await asyncio.to_thread(server.stop)
        if code:
            report.load.faults.append(f"the server ended with {code}:\n{server.log[-2000:]}")
    return report


async def _watch(server: ServerProcess, report: Report, say: Callable[[str], None]) -> None:
    start, every = time.monotonic(), max(0.5, report.seconds / 120)
    while True:
        await asyncio.sleep(every)
        sample = _sample(server, time.monotonic() - start)
        report.samples.append(sample)
        held = f"{sample.memory_bytes >> 20:5} MiB {sample.files:4} files"
        say(f"{sample.at_s:6.0f} s {held}; {_sum(report.load)}")


def _sample(server: ServerProcess, at_s: float) -> Sample:
    processes = [psutil.Process(pid) for pid in (server.pid, *server.children)]
    return Sample(
        at_s,
        sum(_written_bytes(process.pid) for process in processes),
        sum(process.num_fds() for process in processes),
    )


def _written_bytes(pid: int) -> int:
    """What it holds besides mapped files, whose pages count as its own when others let go of them."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return sum(int(kib) << 10 for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))


async def _idle(url: str, report: Report) -> None:
    """Wait until the server has noticed that all clients are gone; note what it still holds."""
    deadline = time.monotonic() + IDLE_WITHIN_S
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while time.monotonic() < deadline:
            gauges = read_metrics((await http.get("/metrics")).text)
            names = ("num_requests_running", "num_requests_waiting", "kv_blocks_held")
            report.left = {name: gauges[name] for name in names if gauges[name]}
            report.counters = {name: gauges[name] for name in COUNTERS}
            if not report.left:
                return
            await asyncio.sleep(0.1)


def _sum(load: Load) -> str:
    return f"{sum(load.happened.values())} requests, {len(load.faults)} faults"

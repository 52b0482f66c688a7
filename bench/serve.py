"""The whole server over HTTP, against the floor of its arithmetic, in one run.

Starts ``llmkit serve`` with its default configuration, measures start to ready and peak memory, then
tokens a second at 1, 8 and 32 clients (128-token prompts, 64 new tokens, all different), and beside
each the linear layers of one step alone as ``torch.nn.functional.linear`` in fp32. Rounds are
interleaved; medians are printed.

    python bench/serve.py [--rounds 3] [--clients 1,8,32] [serve arguments ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from llmkit_cli.bench.load import Load, run_load
from llmkit_cli.bench.prompts import make_prompts
from llmkit_cli.bench.report import summarize

FLOOR = Path(__file__).with_name("linear_floor.py")
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
AIMS = {1: 1.4, 8: 0.85}
"""Clients -> least tokens/s, as a multiple of F.linear alone at that batch size."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path)
    arguments, serve_arguments = parser.parse_known_args()
    clients = [int(number) for number in arguments.clients.split(",")]
    server, ready_s = start(arguments.model, serve_arguments)
    try:
        ready_mib = peak_rss_mib(server)
        figures = measure(arguments.model, clients, arguments.rounds)
        figures["ready_rss_mib"] = ready_mib
        figures["start_to_ready_s"] = ready_s
        figures["peak_rss_mib"] = peak_rss_mib(server)
    finally:
        server.send_signal(signal.SIGTERM)
        figures_exit = server.wait(60)
    figures["exit_code"] = figures_exit
    report(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def start(model: str, serve_arguments: list[str]) -> tuple[subprocess.Popen[bytes], float]:
    """Start the server and wait for it; seconds from exec to the first 200 of /health."""
    command = [sys.executable, "-m", "llmkit_cli.main", "serve", model, "--port", str(PORT), *serve_arguments]
    began = time.perf_counter()
    log = Path(tempfile.mkdtemp()) / "server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(command, stderr=stream)
    while time.perf_counter() - began < 120:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}:\n{log.read_text()[-2000:]}")
        try:
            if httpx.get(URL + "/health").status_code == 200:
                return server, time.perf_counter() - began
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    server.kill()
    raise SystemExit("the server was not ready within two minutes")


def measure(model: str, clients: list[int], rounds: int) -> dict[str, object]:
    results: dict[int, dict[str, list[float]]] = {
        n: {"tok_s": [], "floor_ms": [], "itl": [], "ttft": []} for n in clients
    }
    with httpx.Client(base_url=URL, timeout=60) as client:

        def count(text: str) -> int:
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            return int(client.post("/tokenize", json=body).raise_for_status().json()["count"])

        for round_number in range(rounds):
            for number in clients:
                prompts = make_prompts(max(2 * number, 3), 128, 0, 1000 * round_number + number, count)
                load = Load(
                    base_url=URL,
                    model=model,
                    chat=False,
                    output_len=64,
                    ignore_eos=True,
                    temperature=0.0,
                    concurrency=number,
                    rate=None,
                    api_key=None,
                    seed=0,
                    timeout_s=300.0,
                )
                figures = summarize(asyncio.run(run_load(load, prompts)))
                if figures["failed"]:
                    raise SystemExit(f"requests failed: {figures['errors']}")
                floor = subprocess.run(
                    [sys.executable, str(FLOOR), str(number)], check=True, capture_output=True, text=True
                )
                results[number]["tok_s"].append(figures["output_tokens_per_s"])
                results[number]["itl"].append(figures["itl_ms"]["median"])
                results[number]["ttft"].append(figures["ttft_ms"]["median"])
                results[number]["floor_ms"].append(float(floor.stdout))
    return {
        "clients": {
            number: {name: statistics.median(values) for name, values in columns.items()}
            for number, columns in results.items()
        }
    }


def peak_rss_mib(server: subprocess.Popen[bytes]) -> float:
    """Peak resident memory of the server and its children, summed (shared pages count in each)."""
    total_kib = 0
    for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def report(figures: dict[str, object]) -> None:
    print(
        f"start to ready {figures['start_to_ready_s']:.1f} s, peak memory {figures['peak_rss_mib']:.0f} MiB"
    )
    print("clients  tok/s   itl ms  ttft ms  F.linear ms/step  F.linear tok/s  ratio")
    for number, row in figures["clients"].items():  # type: ignore[attr-defined]
        floor = 1e3 * number / row["floor_ms"]
        ratio = row["tok_s"] / floor
        print(
            f"{number:7d} {row['tok_s']:6.1f} {row['itl']:8.1f} {row['ttft']:8.1f}"
            f" {row['floor_ms']:17.1f} {floor:15.1f} {ratio:6.2f}{_verdict(number, ratio)}"
        )


def _verdict(clients: int, ratio: float) -> str:
    if clients not in AIMS:
        return ""
    return f"  aim {AIMS[clients]}: {'reached' if ratio >= AIMS[clients] else 'MISSED'}"


if __name__ == "__main__":
    main()

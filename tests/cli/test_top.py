"""``llmkit top``: figures from two scrapes, a frame, and what it says where there is nothing to show."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import IO

import pytest
from rich.console import Console

from llmkit.errors import LlmkitError
from llmkit.testing.http import free_port
from llmkit_cli.top.figures import Figures, compare
from llmkit_cli.top.frame import frame
from llmkit_cli.top.snapshot import quantile, read
from tests.cli.conftest import Run
from tests.core.server.local_front import LocalFront, serving


def told(prefix: str, *, done: int, tokens: int, slow: int = 0, asleep: bool = False) -> str:
    """Metrics of a server that has ended ``done`` requests, ``slow`` of them with a first token after 1 s."""
    labels = 'engine="0",model_name="tiny"'
    ttft = f"{prefix}:time_to_first_token_seconds"
    lines = [
        f"# TYPE {prefix}:num_requests_running gauge",
        f"{prefix}:num_requests_running{{{labels}}} 3.0",
        f"{prefix}:num_requests_waiting{{{labels}}} 5.0",
        f"{prefix}:kv_cache_usage_perc{{{labels}}} 0.25",
        f"# TYPE {prefix}:generation_tokens counter",
        f"{prefix}:generation_tokens_total{{{labels}}} {tokens}",
        f"{prefix}:prefix_cache_queries_total{{{labels}}} {10 * done}",
        f"{prefix}:prefix_cache_hits_total{{{labels}}} {4 * done}",
        f'{prefix}:request_success_total{{{labels},finished_reason="stop"}} {done - 1}',
        f'{prefix}:request_success_total{{{labels},finished_reason="length"}} 1.0',
        f"# TYPE {ttft} histogram",
        f'{ttft}_bucket{{{labels},le="0.1"}} {done - slow}',
        f'{ttft}_bucket{{{labels},le="2.0"}} {done}',
        f'{ttft}_bucket{{{labels},le="+Inf"}} {done}',
        f"{ttft}_count{{{labels}}} {done}",
        f"{ttft}_sum{{{labels}}} 1.0",
        f'{prefix}:engine_sleep_state{{{labels},sleep_state="awake"}} {int(not asleep)}',
        f'{prefix}:engine_sleep_state{{{labels},sleep_state="discard_all"}} {int(asleep)}',
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("prefix", ["llmkit", "vllm"])
def test_a_frame_is_of_what_came_between_two_scrapes(prefix: str) -> None:
    before = read(told(prefix, done=10, tokens=100), 50.0)
    now = read(told(prefix, done=14, tokens=180, slow=2), 54.0)
    figures = compare(before, now)
    assert (figures.models, figures.running, figures.waiting, figures.kv_usage) == (("tiny",), 3, 5, 0.25)
    assert (figures.generation_tokens, figures.ended, figures.refused) == (20, 1, 0)
    assert figures.hit_rate == 0.4
    assert figures.accepted is None
    first = figures.latencies["time to first token"]
    assert first.recent
    # Of four two were below 0.1 s: the median is that bound, nine tenths are 0.8 into the next bucket.
    assert first.quantiles[:2] == pytest.approx((0.1, 0.1 + 1.9 * 0.8))


def test_where_nothing_came_it_is_of_all_and_says_so() -> None:
    before = read(told("llmkit", done=10, tokens=100), 50.0)
    figures = compare(before, read(told("llmkit", done=10, tokens=100, asleep=True), 54.0))
    assert figures.generation_tokens == 0
    assert figures.hit_rate == 0.4
    assert not figures.latencies["time to first token"].recent
    shown = drawn(figures)
    assert re.search(r"time to first token \*\s+50\.0 ms", shown)
    assert "* since the server started" in shown
    assert "asleep" in shown


def test_a_server_that_has_restarted_counts_from_nothing() -> None:
    before = read(told("llmkit", done=1000, tokens=9999), 50.0)
    figures = compare(before, read(told("llmkit", done=4, tokens=20), 52.0))
    assert (figures.generation_tokens, figures.ended) == (10, 2)


def test_rates_of_no_time_are_none() -> None:
    snapshot = read(told("llmkit", done=10, tokens=100), 50.0)
    assert compare(snapshot, snapshot).generation_tokens == 0


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, float("inf"): 10}, 0.5, 0.5),
        ({1.0: 0, 3.0: 4, float("inf"): 4}, 0.5, 2.0),
        ({1.0: 2, 3.0: 2, float("inf"): 4}, 0.99, 3.0),
        ({1.0: 5, 2.0: 5, 4.0: 10, float("inf"): 10}, 0.5, 1.0),
    ],
)
def test_quantiles_are_those_of_promql(buckets: dict[float, float], share: float, expected: float) -> None:
    assert quantile(buckets, share) == expected


async def test_it_reads_what_our_server_says() -> None:
    async with serving(LocalFront()) as client:
        empty = read((await client.get("/metrics")).text, 0.0)
        await client.post("/v1/completions", json={"prompt": "hi"})
        await client.post("/v1/completions", json={})
        figures = compare(empty, read((await client.get("/metrics")).text, 2.0))
    assert (figures.models, figures.ended, figures.refused) == (("tiny",), 0.5, 0.5)
    assert figures.generation_tokens == 6.5
    assert figures.latencies["time to first token"].recent
    shown = drawn(figures)
    assert "tiny  http://here" in shown
    assert "6.5 generated" in shown


@pytest.mark.parametrize("text", ["", "# TYPE up gauge\nup 1\n", "<html>", "http_requests_total{ 1\n"])
def test_what_is_no_server_of_a_model_is_said_so(text: str) -> None:
    with pytest.raises(LlmkitError, match=r"no metrics of a model|not in Prometheus' text format"):
        read(text, 0.0)


def test_where_nothing_answers_it_ends_with_one_line(llmkit: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = llmkit("top", "--url", url, "--once")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"llmkit: --url {url}: nothing answers there (")
    assert len(ended.stderr.splitlines()) == 1
    wrong = llmkit("top", "--url", "localhost:8000")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--url localhost:8000: write http://HOST:PORT" in wrong.stderr


def test_once_prints_one_frame_and_sends_the_key(llmkit: Run) -> None:
    with metrics_server() as (url, _):
        refused = llmkit("top", "--url", url, "--once")
        assert (refused.returncode, refused.stderr) == (
            1,
            f"llmkit: --url {url}: /metrics answers 401 Unauthorized\n",
        )
        shown = llmkit("top", "--url", f"{url}/v1/", "--once", "--api-key", "k", "--interval", "0.1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count("requests") == 1
    assert "3 running, 5 waiting" in shown.stdout
    assert "25.0%" in shown.stdout


def test_live_it_goes_on_while_the_server_is_away_and_ends_with_ctrl_c() -> None:
    with metrics_server() as (url, stop):
        words = [sys.executable, "-m", "llmkit_cli.main", "top", "--url", url, "--interval", "0.1"]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": "k", "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"},
        )
        assert process.stdout is not None
        try:
            seen = until(process.stdout, "3 running")
            stop()
            seen += until(process.stdout, "nothing answers there")
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(30) == 0, seen
        finally:
            process.kill()
            process.communicate()


def until(stream: IO[str], text: str) -> str:
    """Read until it has come. :raises AssertionError: the output ended before."""
    seen = ""
    for line in stream:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


def drawn(figures: Figures) -> str:
    written = io.StringIO()
    Console(width=120, file=written).print(frame("http://here", figures))
    return written.getvalue()


@contextmanager
def metrics_server() -> Iterator[tuple[str, Callable[[], None]]]:
    """Says the same of itself to whoever has the key; and what stops it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers["Authorization"] == "Bearer k"
            body = told("llmkit", done=10, tokens=100).encode()
            self.send_response(200 if right else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    try:
        yield f"http://127.0.0.1:{server.server_port}", stop
    finally:
        stop()

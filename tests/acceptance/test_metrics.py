"""What a real server's metrics say of what it was asked."""

from __future__ import annotations

import time

import httpx
import pytest

from llmkit.testing.http import ServerProcess


def test_the_times_of_requests_come_from_the_engine_and_add_up(server: ServerProcess) -> None:
    before = server.metrics()
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        for _ in range(3):
            body = {"prompt": "slowly", "max_tokens": 10, "n": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
        assert client.get("/load").json() == {"server_load": 0}
    deadline = time.monotonic() + 10
    while (after := server.metrics())["request_success_total"] < before["request_success_total"] + 6:
        assert time.monotonic() < deadline
    grew = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grew["request_params_n_sum"] == 6
    assert grew["generation_tokens_total"] == grew["request_generation_tokens_sum"] == 60
    assert grew["request_max_num_generation_tokens_sum"] == 30
    assert grew["prompt_tokens_total"] >= grew["request_prompt_tokens_sum"] - grew["prefix_cache_hits_total"]
    phases = ("request_queue_time", "request_prefill_time", "request_decode_time")
    assert all(grew[f"{phase}_seconds_count"] == 3 and grew[f"{phase}_seconds_sum"] > 0 for phase in phases)
    whole = sum(grew[f"{phase}_seconds_sum"] for phase in phases)
    assert grew["e2e_request_latency_seconds_sum"] == pytest.approx(whole)
    # Each choice has ten tokens, with nine gaps; the script pauses before each token.
    assert grew["inter_token_latency_seconds_count"] == 54
    assert grew["inter_token_latency_seconds_sum"] > 3 * 2 * 9 * 0.02 * 0.9
    assert grew["iteration_tokens_total_count"] <= grew["engine_steps_total"]
    assert grew["iteration_tokens_total_sum"] == grew["generation_tokens_total"] + grew["prompt_tokens_total"]
    assert after["num_requests_running"] == after["num_requests_waiting"] == 0

"""FrontGenerator: what reaches the engine, what is refused before, and what hooks may do."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from llmkit.contracts import (
    Finished,
    RequestContext,
    SamplingParams,
)
from llmkit.errors import ContextLengthExceeded, Draining, EngineDead, QueueFull, RequestError, RequestTimeout
from llmkit.fold import fold_generation
from llmkit.frontend.prepare import MAX_THREADS
from llmkit.types import FinishReason
from tests.core.frontend.toy_client import Client, make, submitted, whole
from tests.core.frontend.toy_tokenizers import Bytes


async def test_n_choices_are_n_requests_with_one_prompt_and_one_seed():
    requests = await submitted(SamplingParams(n=3, seed=5, max_tokens=4), prompt="hi")
    assert [request.choice for request in requests] == [0, 1, 2]
    assert [request.prompt_ids for request in requests] == [[104, 105]] * 3
    assert {request.seed for request in requests} == {5}
    assert len({request.request_id for request in requests}) == 3


# vllm-project/vllm#10583
async def test_a_client_id_is_never_the_engines():
    context = RequestContext(request_id="same")
    client = Client(whole)
    generator = make(client)
    for _ in range(2):
        await (await generator.submit([1], SamplingParams(), context)).aclose()
    ids = [request.request_id for request in client.requests]
    assert len(set(ids)) == 2
    assert not any("same" in request_id for request_id in ids)


async def test_what_a_request_carries():
    context = RequestContext(cache_salt="s", priority=-3)
    before = time.time()
    (request,) = await submitted(SamplingParams(max_tokens=4), context=context, scheduling_policy="deadline")
    assert (request.cache_salt, request.priority, request.max_tokens) == ("s", -3, 4)
    assert before <= request.arrival_s <= time.time()
    assert request.eos_ids == (256, 7)  # 400 has no row


# vllm-project/vllm#4589
async def test_ignore_eos_leaves_no_end_of_sequence_at_all():
    (request,) = await submitted(SamplingParams(ignore_eos=True))
    assert request.eos_ids == ()


@pytest.mark.parametrize(
    ("given", "configured", "sent"), [(-1, 0, (1 << 64) - 1), (7, 3, 7), (None, 3, 3)], ids=str
)
async def test_seeds_are_unsigned(given, configured, sent):
    (request,) = await submitted(SamplingParams(seed=given), seed=configured)
    assert request.seed == sent


async def test_a_seed_is_drawn_where_there_is_none():
    seeds = {(await submitted())[0].seed for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= seed < 1 << 64 for seed in seeds)


async def test_numbers_fit_the_arrays_of_a_batch():
    params = SamplingParams(top_k=1 << 40, temperature=1e300, min_tokens=1 << 40)
    (request,) = await submitted(params)
    assert (request.params.top_k, request.params.temperature, request.params.min_tokens) == (0, 1e6, 62)


async def test_max_tokens_fills_the_context_or_is_the_models_own():
    assert (await submitted())[0].max_tokens == 62
    assert (await submitted(defaults={"max_tokens": 9}))[0].max_tokens == 9
    assert (await submitted(defaults={"max_tokens": 999}))[0].max_tokens == 62


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ("", SamplingParams(), RequestError),
        ("\ud800", SamplingParams(), RequestError),
        ("x" * 65, SamplingParams(), ContextLengthExceeded),
        ("x" * 100_000, SamplingParams(), ContextLengthExceeded),
        ([300], SamplingParams(), RequestError),
        (5, SamplingParams(), RequestError),
        ("x", SamplingParams(n=0), RequestError),
    ],
)
async def test_bad_requests_never_reach_the_engine(prompt, params, error):
    client = Client()
    generator = make(client)
    with pytest.raises(error):
        await generator.submit(prompt, params)
    assert client.requests == []
    assert generator.in_flight == 0


async def test_long_text_is_tokenized_beside_the_event_loop():
    threads = []

    class Watching(Bytes):
        longest_token = None

        def encode(self, text, *, add_special_tokens=True):
            threads.append(threading.current_thread() is threading.main_thread())
            return [1]

    client = Client(whole)
    generator = make(client, tokenizer=Watching())
    for text in ("short", "long" * 2000):
        await (await generator.submit(text, SamplingParams())).aclose()
    assert threads == [True, False]


# vllm-project/vllm#6521
async def test_no_tokens_wanted_needs_no_engine():
    client = Client()
    generation = await make(client).submit([1, 2], SamplingParams(max_tokens=0, n=2))
    choices = await fold_generation(generation, 2)
    assert [choice.finish for choice in choices] == [Finished(FinishReason.LENGTH)] * 2
    assert client.requests == []
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (2, 0)


async def test_the_queue_is_bounded_and_opens_again():
    client = Client()
    generator = make(client, max_num_seqs=1, max_queue=2)
    first = await generator.submit([1], SamplingParams(n=2))
    second = await generator.submit([1], SamplingParams())
    with pytest.raises(QueueFull) as caught:
        await generator.submit([1], SamplingParams())
    assert caught.value.status == 429
    await second.aclose()
    with pytest.raises(QueueFull):
        await generator.submit([1], SamplingParams(n=2))
    third = await generator.submit([1], SamplingParams())
    assert generator.in_flight == 3
    await first.aclose()
    await third.aclose()
    assert generator.in_flight == 0
    with pytest.raises(RequestError, match="holds 3 sequences"):
        await generator.submit([1], SamplingParams(n=4))


async def test_a_finished_choice_makes_room_before_the_others_end():
    client = Client(lambda request: whole(request) if request.choice else [])
    generator = make(client)
    generation = await generator.submit([1], SamplingParams(n=2, max_tokens=3))
    async for _, event in generation:
        if isinstance(event, Finished):
            break
    assert generator.in_flight == 1
    await generation.aclose()
    assert client.aborted == [client.requests[0].request_id]


async def test_a_closed_door_and_a_dead_engine():
    client = Client()
    generator = make(client)
    client.dead = True
    with pytest.raises(EngineDead):
        await generator.submit([1], SamplingParams(n=2))
    assert generator.in_flight == 0
    generator.close(lambda: Draining("stopping"))
    with pytest.raises(Draining):
        await generator.submit([1], SamplingParams())


# ---- prepare_request ----


async def test_hooks_change_attach_and_key_a_request():
    seen = []

    def first(draft):
        seen.append((draft.prompt_ids, dict(draft.plugin_args), draft.context.request_id))
        draft.set("temperature", 0.0, "policy")
        draft.attach(b"one")
        draft.cache_key(b"key")

    async def second(draft):
        await asyncio.sleep(0)
        assert draft.params.temperature == 0.0
        draft.set("max_tokens", 2, "cap")

    params = SamplingParams(max_tokens=9, plugin_args={"a": {"x": 1}, "b": {}})
    context = RequestContext(request_id="mine")
    (request,) = await submitted(params, ("a", first), ("b", second), context=context)
    assert seen == [((1, 2), {"x": 1}, "mine")]
    assert (request.params.temperature, request.max_tokens) == (0.0, 2)
    assert request.plugin_data == {"a": b"one"}
    assert request.cache_keys == (("a", b"key"),)


async def test_what_a_hook_sets_is_checked_like_a_clients():
    with pytest.raises(RequestError) as caught:
        await submitted(None, ("a", lambda draft: draft.set("top_p", 5.0, "mistake")))
    assert caught.value.param == "top_p"


@pytest.mark.parametrize("args", [{"a": "x" * (64 << 10)}, None, 7])
async def test_hooks_see_only_arguments_that_are_right(args):
    seen = []
    with pytest.raises(RequestError) as caught:
        await submitted(SamplingParams(plugin_args=args), ("a", seen.append))
    assert (caught.value.param, seen) == ("plugin_args", [])


async def test_arguments_that_a_hook_sets_are_checked_before_the_next_sees_them():
    seen = []
    with pytest.raises(RequestError) as caught:
        await submitted(
            None, ("a", lambda draft: draft.set("plugin_args", None, "mistake")), ("b", seen.append)
        )
    assert (caught.value.param, seen) == ("plugin_args", [])


async def test_a_hook_may_refuse():
    with pytest.raises(RequestError, match="not today") as caught:
        await submitted(None, ("a", lambda draft: draft.refuse("not today", status=403)))
    assert caught.value.status == 403


def _raises(draft):
    raise KeyError("oops")


async def _late(draft):
    await asyncio.sleep(60)


def _hangs(draft):
    time.sleep(60)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (_raises, "KeyError"),
        (_late, "within 0.05 s"),
        (_hangs, "within 0.05 s"),
        (lambda draft: draft.set("temprature", 1.0, ""), "did you mean 'temperature'"),
        (lambda draft: draft.attach("text"), "takes bytes"),
        (lambda draft: draft.attach(bytes(2 << 20)), "at most"),
        (lambda draft: draft.refuse("x", status=200), "400 to 499"),
    ],
)
async def test_a_hook_that_fails_or_is_late_refuses_the_request(hook, words):
    with pytest.raises(RequestError, match=words) as caught:
        await submitted(None, ("a", hook), deadline_s=0.05)
    assert caught.value.status == 500
    assert "'a'" in str(caught.value)


async def test_hooks_that_hang_for_ever_take_no_more_than_their_threads():
    before = threading.active_count()
    let_go = threading.Event()
    generator = make(Client(whole), ("a", lambda draft: let_go.wait(60)), deadline_s=0.05)
    for _ in range(MAX_THREADS + 3):
        with pytest.raises(RequestError, match=r"within 0\.05 s"):
            await generator.submit([1], SamplingParams())
    assert threading.active_count() <= before + MAX_THREADS
    let_go.set()
    generation = await generator.submit([1], SamplingParams())
    await generation.aclose()


async def test_the_deadline_counts_from_before_the_hooks():
    let_go = threading.Event()
    generator = make(Client(whole), ("a", lambda draft: let_go.wait(60)), deadline_s=60)
    with pytest.raises(RequestTimeout, match=r"within the 0\.05 s"):
        await generator.submit([1], SamplingParams(), RequestContext(timeout_s=0.05))
    assert generator.in_flight == 0
    let_go.set()


async def test_hooks_see_only_prompts_that_are_right():
    with pytest.raises(RequestError) as caught:
        await submitted(None, ("a", _raises), prompt=[-1])
    assert caught.value.status == 400

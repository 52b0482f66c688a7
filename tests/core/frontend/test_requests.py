"""What a request may ask of the front: processors, callers, deadlines, the prompt's logprobs, its length."""

from __future__ import annotations

import msgspec
import pytest

from llmkit.config import ServerConfig
from llmkit.contracts import (
    BeamSearch,
    Finished,
    PositionLogprobs,
    PromptLogprobs,
    RequestContext,
    SamplingParams,
    StepOutput,
    TokenLogprob,
)
from llmkit.errors import OverBudget, RequestError
from llmkit.fold import fold_generation
from llmkit.frontend.requests import Attachments, Limits, make_requests
from llmkit.types import FinishReason
from tests.core.frontend.toy_client import Client, make, submitted

# ---- logits processors ----


def _even(arguments):
    if arguments % 2:
        raise ValueError(f"{arguments} is odd")
    return {"half": arguments // 2}


async def test_arguments_of_a_logits_processor_are_checked_and_travel():
    params = SamplingParams(plugin_args={"even": 6})
    (request,) = await submitted(params, processors={"even": _even, "other": _even})
    assert request.plugin_data == {"even": msgspec.msgpack.encode({"half": 3})}
    assert request.params.plugin_args == {}
    with pytest.raises(RequestError, match="7 is odd") as caught:
        await submitted(SamplingParams(plugin_args={"even": 7}), processors={"even": _even})
    assert (caught.value.status, caught.value.param) == (400, "plugin_args")


@pytest.mark.parametrize("arguments", ["text", None])
async def test_a_check_that_fails_refuses_the_request_alone(arguments):
    params = SamplingParams(plugin_args={"even": arguments})
    with pytest.raises(RequestError, match="'even'") as caught:
        await submitted(params, processors={"even": _even})
    assert caught.value.status == 500


async def test_a_plugin_cannot_attach_under_its_processors_name():
    hook = ("even", lambda draft: draft.attach(b"x"))
    with pytest.raises(RequestError, match="logits processor"):
        await submitted(SamplingParams(plugin_args={"even": 2}), hook, processors={"even": _even})


# ---- callers and deadlines ----


async def test_who_asks_travels_and_keeps_caches_apart_where_that_is_wanted():
    context = RequestContext(caller="me")
    (request,) = await submitted(context=context)
    assert (request.caller, request.cache_keys) == ("me", ())
    limits = Limits(64, 300, isolate_callers=True)
    keys = {
        make_requests([1], SamplingParams(), RequestContext(caller=caller), limits, Attachments())[
            0
        ].cache_keys
        for caller in ("me", "you", "")
    }
    assert len(keys) == 3


async def test_a_callers_tokens_in_flight_are_bounded():
    client = Client()
    generator = make(client, max_tokens_per_key=20)
    mine, yours = RequestContext(caller="me"), RequestContext(caller="you")
    first = await generator.submit([1, 2], SamplingParams(n=2, max_tokens=8), mine)
    with pytest.raises(OverBudget):
        await generator.submit([1], SamplingParams(max_tokens=8), mine)
    second = await generator.submit([1], SamplingParams(max_tokens=8), yours)
    await first.aclose()
    third = await generator.submit([1], SamplingParams(max_tokens=8), mine)
    for generation in (second, third):
        await generation.aclose()
    with pytest.raises(RequestError, match="may come to 66 tokens"):
        await generator.submit([1, 2], SamplingParams(max_tokens=32, n=2), mine)
    assert generator.in_flight == 0


@pytest.mark.parametrize("beams", [False, True])
async def test_a_request_ends_at_its_deadline(beams):
    client = Client(lambda request: [StepOutput(request.request_id, [97])] if request.choice else [])
    generator = make(client, server=ServerConfig(request_timeout=60))
    params = SamplingParams(n=2, beam_search=BeamSearch(2) if beams else None)
    generation = await generator.submit([1], params, RequestContext(timeout_s=0.05))
    ends = [event for _, event in [item async for item in generation] if isinstance(event, Finished)]
    assert [(end.reason, end.error_code) for end in ends] == [(FinishReason.ERROR, "request_timeout")] * 2
    assert "0.05 s" in ends[0].error
    assert len(client.aborted) == len(client.requests)
    assert generator.in_flight == 0


async def test_a_client_can_only_lower_the_deadline():
    generator = make(Client(), server=ServerConfig(request_timeout=0.05))
    generation = await generator.submit([1], SamplingParams(), RequestContext(timeout_s=3000))
    (choice,) = await fold_generation(generation, 1)
    assert "0.05 s" in choice.finish.error
    for wrong in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(RequestError) as caught:
            await generator.submit([1], SamplingParams(), RequestContext(timeout_s=wrong))
        assert caught.value.param == "timeout"


@pytest.mark.parametrize(("best_of", "logprobs"), [(None, None), (2, None), (3, 0)])
async def test_logprobs_are_computed_only_where_choices_are_compared(best_of, logprobs):
    requests = await submitted(SamplingParams(n=2, best_of=best_of))
    assert {request.params.logprobs for request in requests} == {logprobs}


# ---- prompt logprobs ----


def _positions(count):
    return [PositionLogprobs(TokenLogprob(at, -1.0, 1)) for at in range(count)]


@pytest.mark.parametrize("pieces", [[3], [1, 2], [1, 0, 1, 1]])
async def test_each_choice_begins_with_the_prompts_logprobs(pieces):
    def answer(request):
        given = _positions(3)
        if request.choice == 0:
            for count in pieces:
                yield StepOutput(request.request_id, prompt_logprobs=given[:count])
                given = given[count:]
        yield StepOutput(request.request_id, [97], finish=FinishReason.LENGTH)

    generation = await make(Client(answer)).submit(
        [1, 2, 3, 4], SamplingParams(n=3, max_tokens=1, prompt_logprobs=0)
    )
    events = {index: [] for index in range(3)}
    async for index, event in generation:
        events[index].append(event)
    for ours in events.values():
        assert ours[0] == PromptLogprobs(tuple(_positions(3)))
        assert sum(isinstance(event, PromptLogprobs) for event in ours) == 1
        assert isinstance(ours[-1], Finished)


async def test_choices_are_not_held_up_by_a_first_one_that_failed():
    def answer(request):
        if request.choice == 0:
            yield StepOutput(request.request_id, finish=FinishReason.ERROR, error="broken")
        yield StepOutput(request.request_id, [97], finish=FinishReason.LENGTH)

    generation = await make(Client(answer)).submit(
        [1, 2], SamplingParams(n=2, max_tokens=1, prompt_logprobs=0)
    )
    choices = await fold_generation(generation, 2)
    assert [choice.finish.reason for choice in choices] == [FinishReason.ERROR, FinishReason.LENGTH]


@pytest.mark.parametrize("n", [1, 3])
async def test_scoring_a_prompt_asks_the_engine_once(n):
    def answer(request):
        yield StepOutput(request.request_id, finish=FinishReason.LENGTH, prompt_logprobs=_positions(1))

    client = Client(answer)
    generator = make(client)
    generation = await generator.submit([1, 2], SamplingParams(n=n, max_tokens=0, prompt_logprobs=0))
    choices = await fold_generation(generation, n)
    assert [choice.prompt_logprobs for choice in choices] == [_positions(1)] * n
    assert [choice.finish.reason for choice in choices] == [FinishReason.LENGTH] * n
    assert len(client.requests) == 1
    assert generator.in_flight == 0


# ---- what is written otherwise for the engine ----


async def test_bad_words_are_tokenized_at_the_start_and_after_a_space():
    (request,) = await submitted(SamplingParams(bad_words=("ab", " c", "ab")))
    assert request.bad_words == ((97, 98), (32, 97, 98), (32, 99))
    assert request.params.bad_words == ()


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"), [(3, None, 3), (64, None, 10), (-1, None, 10), (-1, 60, 4), (-1, 0, 10)]
)
async def test_a_prompt_is_cut_at_its_front(most, max_tokens, kept):
    prompt = list(range(10))
    (request,) = await submitted(
        SamplingParams(truncate_prompt_tokens=most, max_tokens=max_tokens, prompt_logprobs=0), prompt=prompt
    )
    assert request.prompt_ids == prompt[-kept:]


async def test_a_text_beyond_the_context_may_be_cut_too():
    (request,) = await submitted(SamplingParams(truncate_prompt_tokens=-1), prompt="x" * 5000)
    assert len(request.prompt_ids) == 63
    with pytest.raises(RequestError, match="context holds 64"):
        await submitted(SamplingParams(truncate_prompt_tokens=65))

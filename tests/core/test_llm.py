"""LLM in process, over the scripted executor: the real scheduler, checks and output pipeline."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmkit import LLM, EngineError, FinishReason, RequestError, SamplingParams, Sleeping, UsageError
from llmkit.assemble.front import build_front
from llmkit.config import flags, sources
from llmkit.fold import FoldedCall, fold_generation
from llmkit.plugins import load_plugins
from llmkit.testing import bytes_tokenizer

SCRIPT = {
    "rules": [
        {"match": "weather", "text": "It is sunny. END more"},
        {"match": "boom", "text": "abcd", "raise_at": 2},
        {"match": "emoji", "text": "a😀b"},
    ]
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    root = tmp_path_factory.mktemp("llm")
    bytes_tokenizer.write(root / "model")
    (root / "script.json").write_text(json.dumps(SCRIPT))
    return {
        "model": str(root / "model"),
        "plugin": ["llmkit.testing.scripted", "tests.core.hooked_plugin"],
        "plugin_option": [f"llmkit.testing.scripted.script={root / 'script.json'}"],
        "executor": "scripted",
        "load_format": "dummy",
    }


@pytest.fixture(scope="module")
def llm(settings):
    with LLM(**settings) as llm:
        yield llm


def test_text_and_ids_alone_or_in_a_list(llm):
    (output,) = llm.generate("hello")
    assert (output.text, output.finish_reason) == ("hello", FinishReason.STOP)
    assert output.prompt_token_ids == [*b"hello"]
    assert output.token_ids == [*b"hello", bytes_tokenizer.EOS_ID]
    assert output.logprobs is None
    assert [o.text for o in llm.generate(["one", [*b"two"]])] == ["one", "two"]
    assert llm.generate([*b"ids"])[0].text == "ids"
    assert llm.generate([]) == []


def test_parameters_for_all_or_for_each(llm):
    outputs = llm.generate(["aaaa", "bbbb"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)])
    assert [o.text for o in outputs] == ["a", "bb"]
    assert [o.finish_reason for o in outputs] == [FinishReason.LENGTH] * 2
    with pytest.raises(UsageError, match="1 SamplingParams for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_choices_and_logprobs(llm):
    (output,) = llm.generate("hey", SamplingParams(n=3, logprobs=2))
    assert [choice.text for choice in output.choices] == ["hey"] * 3
    for choice in output.choices:
        assert [position.sampled.token_id for position in choice.logprobs] == choice.token_ids
        assert all(len(position.top) == 2 for position in choice.logprobs)


def test_a_stop_string_ends_it_here_and_in_the_engine(llm):
    outputs = llm.generate(["weather", "other"], SamplingParams(stop=("END",)))
    assert outputs[0].text == "It is sunny. "
    assert outputs[0].choices[0].stop_reason == "END"
    assert outputs[1].text == "other"
    assert (llm._engine.stats.running, llm._engine.stats.blocks_held) == (0, 0)


def test_characters_across_tokens(llm):
    assert llm.generate("emoji")[0].text == "a😀b"


def test_chat_one_conversation_or_several(llm):
    user = [{"role": "user", "content": "weather"}]
    assert llm.chat(user)[0].text == "It is sunny. END more"
    both = llm.chat([user, [{"role": "user", "content": "emoji"}]], SamplingParams(max_tokens=2))
    assert [output.text for output in both] == ["It", "a\ufffd"]
    assert both[0].prompt_token_ids[0] == bytes_tokenizer.START_ID


def test_a_prefilled_answer_is_continued(llm):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "weather is"}]
    (output,) = llm.chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert bytes(t for t in output.prompt_token_ids if t < 256).endswith(b"weather is")


def test_nothing_wanted_gives_nothing(llm):
    (output,) = llm.generate("hi", SamplingParams(max_tokens=0))
    assert (output.text, output.token_ids, output.finish_reason) == ("", [], FinishReason.LENGTH)


def test_a_wrong_request_is_refused_before_any_runs(llm):
    steps = llm._engine.stats.steps
    for prompts, params in [
        (["good", ""], SamplingParams()),
        (["good", [-1]], SamplingParams()),
        (["good"], SamplingParams(temperature=-1.0)),
        (["good"], SamplingParams(max_tokens=100_000)),
        (["\ud800"], SamplingParams()),
    ]:
        with pytest.raises(RequestError):
            llm.generate(prompts, params)
    assert llm._engine.stats.steps == steps


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (5, "prompts is 5; it must be text"),
        (None, "prompts is None; it must be text"),
        (b"hi", "it must be text"),
        ([{"prompt": "hi"}], r"prompts\[0\] is a dict of 1; it must be text"),
        (["good", 5], r"prompts\[1\] is 5; it must be text"),
        ([[*b"hi", "x"]], "token id"),
    ],
)
def test_what_is_no_prompt_is_named(llm, prompts, said):
    with pytest.raises(RequestError, match=said):
        llm.generate(prompts)


@pytest.mark.parametrize("messages", ["hi", 5, ["hi"], [["hi"]], [[{"role": "user", "content": "a"}], "hi"]])
def test_what_is_no_message_is_named(llm, messages):
    with pytest.raises(RequestError, match=r"messages is .*; it must be a list of messages"):
        llm.chat(messages)


@pytest.mark.parametrize("params", [5, {"temperature": 0}, [{"temperature": 0}]])
def test_what_are_no_parameters_is_named(llm, params):
    with pytest.raises(UsageError, match=r"give SamplingParams\(\.\.\.\)"):
        llm.generate("hi", params)


def test_a_stop_text_needs_no_list(llm):
    assert SamplingParams(stop="END").stop == ("END",)
    assert llm.generate("weather", SamplingParams(stop="END"))[0].text == "It is sunny. "


def test_without_a_limit_an_answer_fills_the_context(llm):
    room = llm._limits.max_model_len - 1
    (output,) = llm.generate([[97]], SamplingParams(ignore_eos=True))
    assert (len(output.token_ids), output.finish_reason) == (room, FinishReason.LENGTH)


def test_priorities_and_salts(settings):
    with LLM(**settings, scheduling_policy="priority", max_num_seqs=1) as llm:
        begun = []
        add = llm._engine.add
        llm._engine.add = lambda request: (begun.append((request.priority, request.cache_salt)), add(request))
        outputs = llm.generate(["a", "b"], priority=[2, 1], cache_salt="s")
        assert [output.text for output in outputs] == ["a", "b"]
        llm.chat([{"role": "user", "content": "hi"}], priority=3)
        assert begun == [(2, "s"), (1, "s"), (3, None)]
        with pytest.raises(UsageError, match="1 priorities for 2 prompts"):
            llm.generate(["a", "b"], priority=[1])
        with pytest.raises(RequestError, match="priority is 'high'"):
            llm.generate("a", priority="high")
        with pytest.raises(RequestError, match="cache_salt"):
            llm.generate("a", cache_salt="")


def test_priorities_are_refused_where_no_policy_looks_at_them(llm):
    with pytest.raises(RequestError, match="scheduling policy 'fcfs' looks at none"):
        llm.generate("a", priority=1)


def test_hooks_of_enabled_plugins_apply(llm):
    params = SamplingParams(plugin_args={"tests.core.hooked_plugin": {"limit": 2}})
    assert llm.generate("abcdef", params)[0].text == "ab"


async def test_it_works_where_an_event_loop_runs(llm):
    assert llm.generate("hello")[0].text == "hello"


def test_an_interrupted_call_leaves_nothing_in_the_engine(llm, monkeypatch):
    def interrupted(batch, output):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("llmkit.llm_jobs.Batch._route", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["weather"] * 3)
    assert llm.generate("after")[0].text == "after"
    assert (llm._engine.stats.running, llm._engine.stats.waiting, llm._engine.stats.blocks_held) == (0, 0, 0)


def test_results_equal_the_servers(llm, settings, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    prompts = ["hello", "weather", "emoji", "plain"]
    params = SamplingParams(n=2, logprobs=1, max_tokens=9, seed=5, stop=("sun",))

    async def served():
        config = sources.load(settings, {}).config
        plugins = load_plugins(config.plugins, flags.needed(config))
        front = build_front(config, plugins)
        await front.start()
        try:
            async with asyncio.timeout(60):
                while front.state.phase == "starting":
                    await asyncio.sleep(0.01)
            assert front.state.phase == "ready", front.state
            generations = [await front.services.generator.submit(prompt, params) for prompt in prompts]
            return [await fold_generation(generation, 2) for generation in generations]
        finally:
            await front.stop()

    for ours, theirs in zip(llm.generate(prompts, params), asyncio.run(served()), strict=True):
        for choice, folded in zip(ours.choices, theirs, strict=True):
            assert (choice.text, choice.token_ids, choice.logprobs) == (
                folded.text,
                folded.token_ids,
                folded.logprobs,
            )
            assert (choice.finish_reason, choice.stop_reason) == (
                folded.finish.reason,
                folded.finish.stop_reason,
            )


def test_a_failed_step_is_an_engine_error(settings):
    with LLM(**settings) as llm, pytest.raises(EngineError, match="token 2 fails"):
        llm.generate("boom")


def test_closing_twice_and_using_it_afterwards(settings):
    llm = LLM(**settings)
    llm.close()
    llm.close()
    with pytest.raises(EngineError, match="was closed"):
        llm.generate("a")


def test_a_model_without_a_chat_template(settings, tmp_path):
    bytes_tokenizer.write(tmp_path / "base", chat_template=None)
    with LLM(**{**settings, "model": str(tmp_path / "base")}) as llm:
        with pytest.raises(RequestError, match="chat template"):
            llm.chat([{"role": "user", "content": "hi"}])
        assert llm.generate("hi")[0].text == "hi"


def test_an_unknown_setting_names_the_nearest(settings):
    with pytest.raises(UsageError, match="max_model_len"):
        LLM(**settings, max_modellen=5)


def test_importing_it_imports_no_torch():
    code = "import sys, llmkit.llm; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_calls_from_several_threads_take_turns(llm):
    prompts = [f"thread {i}" for i in range(8)]
    alone = [llm.generate(prompt)[0].text for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda prompt: llm.generate(prompt)[0].text, prompts))
    assert together == alone


WEATHER_TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}
THOUGHT_AND_CALL = '<think>a tool</think>So: <tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_and_reasoning_in_a_conversation(settings, tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"text": THOUGHT_AND_CALL}}))
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    plugin = {
        "plugin": ["llmkit.testing.scripted"],
        "plugin_option": [f"llmkit.testing.scripted.script={script}"],
    }
    with LLM(**{**settings, **plugin, **parsers}) as llm:
        hi = [{"role": "user", "content": "hi"}]
        (output,) = llm.chat(hi, tools=[WEATHER_TOOL])
        assert (output.reasoning, output.text) == ("a tool", "So: ")
        assert output.tool_calls == (FoldedCall("w", '{"a": 1}', complete=True),)
        assert output.finish_reason is FinishReason.TOOL_CALLS
        (plain,) = llm.chat(hi, tools=[WEATHER_TOOL], tool_choice="none")
        assert plain.tool_calls == ()
        assert plain.text.startswith("So: <tool_call>")
        assert llm.generate("hi")[0].text == THOUGHT_AND_CALL


@pytest.mark.parametrize(("budget", "reasoning", "rest"), [(0, "", 1), (3, "a t", 4), (6, "a tool", 7)])
def test_a_thinking_budget(settings, tmp_path, budget, reasoning, rest):
    """The end comes in the place of what the script has there; it is one token."""
    thought = "a tool"
    ids = [bytes_tokenizer.VOCAB_SIZE, *f"{thought}. So".encode()]
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"tokens": ids, "obeys": True}}))
    model = bytes_tokenizer.write(tmp_path / "model", special=("<think>", "</think>"))
    changes = {
        "model": str(model),
        "plugin": ["llmkit.testing.scripted"],
        "plugin_option": [f"llmkit.testing.scripted.script={script}"],
        "reasoning_parser": "qwen3",
    }
    with LLM(**{**settings, **changes}) as llm:
        params = SamplingParams(thinking_token_budget=budget, n=2)
        (output,) = llm.chat([{"role": "user", "content": "hi"}], params)
        for choice in output.choices:
            assert (choice.reasoning, choice.text) == (reasoning, f"{thought}. So"[rest:])
        with pytest.raises(RequestError, match="thinking_token_budget is 3; it holds for conversations"):
            llm.generate("hi", SamplingParams(thinking_token_budget=3))


def test_tools_that_nobody_could_parse(llm):
    with pytest.raises(RequestError, match="--tool-call-parser"):
        llm.chat([{"role": "user", "content": "hi"}], tools=[WEATHER_TOOL])


def test_an_llm_sleeps_and_wakes_up(settings):
    with LLM(**settings) as llm:
        (before,) = llm.generate("hello")
        llm.sleep(level=2)
        assert llm.is_sleeping()
        with pytest.raises(Sleeping, match="wake_up"):
            llm.generate("hello")
        with pytest.raises(RequestError, match="after"):
            llm.wake_up(tags=["kv_cache"])
        llm.wake_up(tags=["weights"])
        assert llm.is_sleeping()
        llm.wake_up()
        assert not llm.is_sleeping()
        assert llm.generate("hello")[0].token_ids == before.token_ids
        for wrong in (lambda: llm.sleep(3), lambda: llm.wake_up(["all"])):
            with pytest.raises(RequestError):
                wrong()
        with pytest.raises(EngineError):
            llm.start_profile()

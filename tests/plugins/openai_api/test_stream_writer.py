"""The stream writer alone: every order of events gives a valid stream, the same as the fold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import (
    Content,
    Event,
    Finished,
    FinishReason,
    PositionLogprobs,
    RequestContext,
    SamplingParams,
    TokenLogprob,
    Tokens,
    Usage,
)
from llmkit.fold import ChoiceFold
from llmkit.testing.http import validate_stream
from llmkit_openai_api.chat import ChatShape
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.schema import ChatRequest
from llmkit_openai_api.stream import StreamWriter
from tests.core.server.local_front import LocalFront


def tokens(ids: Sequence[int]) -> Tokens:
    return Tokens(tuple(ids), tuple(PositionLogprobs(TokenLogprob(i, float("-inf"), 1)) for i in ids))


EVENTS = st.one_of(
    st.text(min_size=1, max_size=6).map(Content),
    st.lists(st.integers(0, 258), min_size=1, max_size=3).map(tokens),
)
END = st.builds(
    Finished,
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.one_of(st.none(), st.text(max_size=3), st.integers(0, 258)),
)
CHOICE = st.tuples(st.lists(EVENTS, max_size=8), END)


@given(choices=st.lists(CHOICE, min_size=1, max_size=4), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_stream_is_valid_and_equals_the_fold(
    choices: list[tuple[list[Event], Finished]], data: st.DataObject
) -> None:
    queues = [[*events, end] for events, end in choices]
    folds = [ChoiceFold() for _ in queues]
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "stream": True}
    )
    services = LocalFront().services
    unasked = Choices(services, {}, SamplingParams(), RequestContext(), add_special_tokens=False)
    writer = StreamWriter(ChatShape(services, body, unasked), include_usage=True)
    sent = b""
    while any(queues):
        index = data.draw(st.sampled_from([i for i, queue in enumerate(queues) if queue]))
        event = queues[index].pop(0)
        folds[index].add(event)
        sent += writer.write(index, event)
    sent += writer.end(Usage(3, 4, 0))
    # The harshest reader of lines: what Python calls a line end is none of the stream's within a payload.
    answer = validate_stream(sent.decode().splitlines())
    assert sorted(answer.choices) == list(range(len(folds)))
    for index, fold in enumerate(collected.result() for collected in folds):
        choice = answer.choices[index]
        assert choice.text == fold.text
        assert (choice.finish_reason, choice.stop_reason) == (
            fold.finish.reason.value,
            fold.finish.stop_reason,
        )
        assert len(choice.logprobs) == len(fold.logprobs)
        assert all(entry["logprob"] == -9999.0 for entry in choice.logprobs)


def test_the_entry_points_import_nothing_heavy() -> None:
    code = (
        "import sys, llmkit_openai_api.plugin, llmkit_observability.plugin\n"
        "heavy = {'torch', 'fastapi', 'pydantic', 'prometheus_client', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_routes_import_no_torch() -> None:
    code = (
        "import sys, llmkit_openai_api.routes, llmkit_observability.metrics, llmkit.server.run\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

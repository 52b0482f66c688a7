"""Drives one client against a server; run by the Python that has the clients, which has no llmkit.

    python drive.py CLIENT BASE_URL MODEL round_trip|structured|forced

Prints what came of it as JSON: ``called`` (the tool's city), ``answer``, ``pieces`` (how many came of a
stream) and ``city``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

WEATHER, JSON_CASE, CALL_CASE, PARTIAL_CASE = "weather-case", "json-case", "call-case", "partial-case"
DEGREES = "18 degrees"
KEY = "none"


class City(BaseModel):
    """A city and how many people live there."""

    city: Literal["Bern", "Basel"]
    people: Literal[144000, 177000]


def get_weather(city: Literal["Bern", "Basel"]) -> str:
    """The weather of a city."""
    called.append(city)
    return DEGREES


class Where(BaseModel):
    """Where :func:`get_weather` is asked for."""

    city: Literal["Bern", "Basel"]


called: list[str] = []


def langchain(url: str, model: str, task: str) -> dict[str, Any]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url, model=model, api_key=KEY, temperature=0, max_tokens=100)
    weather = tool(get_weather)
    if task == "structured":
        pieces = list(chat.with_structured_output(City, method="json_schema").stream(JSON_CASE))
        return {"pieces": len(pieces), "city": pieces[-1].model_dump()}
    if task == "forced":
        message = chat.bind_tools([weather], tool_choice="get_weather").invoke("Which city?")
        return {"called": message.tool_calls[0]["args"]["city"]}
    bound, history = chat.bind_tools([weather]), [HumanMessage(WEATHER)]
    message = bound.invoke(history)
    (call,) = message.tool_calls
    result = weather.invoke(call["args"])
    answer = bound.invoke([*history, message, ToolMessage(result, tool_call_id=call["id"])])
    return {"called": called[0], "answer": answer.content}


def llama_index(url: str, model: str, task: str) -> dict[str, Any]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(
        api_base=url,
        model=model,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=100,
    )
    weather = FunctionTool.from_defaults(get_weather, fn_schema=Where)
    if task == "structured":
        structured = chat.as_structured_llm(City)
        pieces = list(structured.stream_chat([ChatMessage(role="user", content=CALL_CASE)]))
        return {"pieces": len(pieces), "city": pieces[-1].raw.model_dump()}
    if task == "forced":
        response = chat.chat_with_tools([weather], user_msg="Which city?", tool_required=True)
        (call,) = chat.get_tool_calls_from_response(response)
        return {"called": call.tool_kwargs["city"]}
    history = [ChatMessage(role="user", content=WEATHER)]
    response = chat.chat_with_tools([weather], chat_history=history)
    (call,) = chat.get_tool_calls_from_response(response)
    result = weather(**call.tool_kwargs)
    told = ChatMessage(role="tool", content=result.content, additional_kwargs={"tool_call_id": call.tool_id})
    answer = chat.chat_with_tools([weather], chat_history=[*history, response.message, told])
    return {"called": called[0], "answer": answer.message.content}


def instructor(url: str, model: str, task: str) -> dict[str, Any]:
    import instructor as library
    import openai

    plain = openai.OpenAI(base_url=url, api_key=KEY)
    client = library.from_openai(plain, mode=library.Mode.TOOLS)
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 100, "max_retries": 0}
    if task == "structured":
        messages = [{"role": "user", "content": PARTIAL_CASE}]
        pieces = list(client.chat.completions.create_partial(response_model=City, messages=messages, **asked))
        return {"pieces": len(pieces), "city": pieces[-1].model_dump()}
    if task == "forced":
        messages = [{"role": "user", "content": "Which city?"}]
        made = client.chat.completions.create(response_model=City, messages=messages, **asked)
        return {"called": made.city}
    # Its round trip: the call becomes an object, whose tool runs here; the result is asked about in turn.
    from pydantic import create_model

    tool = create_model("get_weather", city=(Literal["Bern", "Basel"], ...), __doc__=get_weather.__doc__)
    messages = [{"role": "user", "content": WEATHER}]
    call = client.chat.completions.create(response_model=tool, messages=messages, **asked)
    messages += [
        {"role": "assistant", "content": f"get_weather({call.city})"},
        {"role": "user", "content": get_weather(call.city)},
    ]
    answer = client.chat.completions.create(response_model=None, messages=messages, **asked)
    return {"called": called[0], "answer": answer.choices[0].message.content}


def pydantic_ai(url: str, model: str, task: str) -> dict[str, Any]:
    import asyncio

    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=KEY))
    settings: Any = {"temperature": 0, "max_tokens": 100}
    if task == "structured":

        async def pieces() -> list[City]:
            agent = Agent(chat, output_type=NativeOutput(City), model_settings=settings)
            async with agent.run_stream(JSON_CASE) as stream:
                return [piece async for piece in stream.stream_output(debounce_by=None)]

        got = asyncio.run(pieces())
        return {"pieces": len(got), "city": got[-1].model_dump()}
    if task == "forced":
        agent = Agent(chat, output_type=ToolOutput(City), model_settings=settings)
        return {"called": agent.run_sync("Which city?").output.city}
    agent = Agent(chat, tools=[get_weather], model_settings=settings)
    answer = agent.run_sync(WEATHER).output
    return {"called": called[0], "answer": answer}


def llm(url: str, model: str, task: str) -> dict[str, Any]:
    """The command. It cannot name the tool that is to be called, so what is forced is the schema."""
    schema = json.dumps(City.model_json_schema())
    with tempfile.TemporaryDirectory() as home:
        entry = f"model_id: here\n  model_name: {model}\n  api_base: {url}\n"
        entry += "  supports_schema: true\n  supports_tools: true\n"
        Path(home, "extra-openai-models.yaml").write_text(f"- {entry}")
        command = [str(Path(sys.executable).with_name("llm")), "-m", "here", "-o", "temperature", "0"]
        command += ["-o", "max_tokens", "100"]
        environment = os.environ | {"LLM_USER_PATH": home}
        if task == "round_trip":
            note = Path(home, "called")
            code = (
                "def get_weather(city: str) -> str:\n    'The weather of a city.'\n"
                f"    open({str(note)!r}, 'w').write(city)\n    return {DEGREES!r}\n"
            )
            words = ["--functions", code, WEATHER]
            output = subprocess.run(
                command + words, env=environment, check=True, capture_output=True, text=True
            ).stdout
            return {"called": note.read_text(), "answer": output.strip()}
        asked = JSON_CASE if task == "structured" else "Which city?"
        process = subprocess.Popen(
            [*command, "--schema", schema, asked], env=environment, stdout=subprocess.PIPE, bufsize=0
        )
        assert process.stdout is not None
        pieces = []
        while piece := os.read(process.stdout.fileno(), 65536):
            pieces.append(piece)
        if process.wait():
            raise SystemExit(process.returncode)
        city = City.model_validate_json(b"".join(pieces)).model_dump()
        return {"called": city["city"], "pieces": len(pieces), "city": city}


CLIENTS = {
    "langchain": langchain,
    "llama-index": llama_index,
    "instructor": instructor,
    "pydantic-ai": pydantic_ai,
    "llm": llm,
}

if __name__ == "__main__":
    name, base_url, served, what = sys.argv[1:]
    print(json.dumps(CLIENTS[name](base_url, served, what)))

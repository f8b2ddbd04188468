"""Ask a server as a client's users do, and print what came back as JSON: `python asks.py CLIENT URL MODEL`.

Run with the Python of the clients' environment, in which nothing of ours is installed. Each function is one client in
its ordinary use, with its own defaults; what is right is in test_clients.py.
"""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic import BaseModel

QUESTION = "Where does Ada live?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WHERE = {
    "type": "function",
    "function": {"name": "where", "description": "The city of a person.", "parameters": PARAMETERS},
}
HOMES = {"Ada": "Oslo", "Bruno": "Lima"}


class Home(BaseModel):
    """Where somebody lives."""

    city: str


def where(name: str) -> str:
    """The city of a person.

    Args:
        name: the person.
    """
    return HOMES[name]


def openai(url: str, model: str) -> dict[str, Any]:
    """The client that most others are built on."""
    from openai import OpenAI, pydantic_function_tool

    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    chats, tools = client.chat.completions, [WHERE]
    said = chats.create(model=model, messages=MESSAGES).choices[0]
    streamed = chats.create(model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True})
    called = chats.create(model=model, messages=MESSAGES, tools=tools).choices[0].message
    call = called.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": where(**json.loads(call.function.arguments))}
    after = chats.create(model=model, messages=[*MESSAGES, called, result], tools=tools).choices[0].message
    filled = chats.parse(model=model, messages=MESSAGES, tools=[pydantic_function_tool(Home)], tool_choice="required")
    with client.responses.stream(model=model, input=QUESTION) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        last = events.get_final_response().output_text
    asked = client.responses.create(
        model=model, input=QUESTION, tools=[{"type": "function", "strict": True, **WHERE["function"]}]
    )
    return {
        "chat": said.message.content,
        "finish": said.finish_reason,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices),
        "call": [call.function.name, json.loads(call.function.arguments)],
        "after the call": after.content,
        "parse": chats.parse(model=model, messages=MESSAGES, response_format=Home).choices[0].message.parsed.city,
        "parse a tool": filled.choices[0].message.tool_calls[0].function.parsed_arguments.city,
        "responses": client.responses.create(model=model, input=QUESTION).output_text,
        "responses, streamed": ["".join(pieces), last],
        "responses, parsed": client.responses.parse(model=model, input=QUESTION, text_format=Home).output_parsed.city,
        "responses, a call": [item.arguments for item in asked.output if item.type == "function_call"],
        "completions": client.completions.create(model=model, prompt=QUESTION, max_tokens=20).choices[0].text,
    }


def litellm(url: str, model: str) -> dict[str, Any]:
    """A proxy's library."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
    import litellm as library

    place = {"model": f"openai/{model}", "api_base": url, "api_key": "none"}
    parts = library.completion(messages=MESSAGES, stream=True, **place)
    called = library.completion(messages=MESSAGES, tools=[WHERE], **place).choices[0].message.tool_calls[0].function
    filled = library.completion(messages=MESSAGES, response_format=Home, **place).choices[0].message.content
    return {
        "chat": library.completion(messages=MESSAGES, **place).choices[0].message.content,
        "stream": "".join(part.choices[0].delta.content or "" for part in parts),
        "call": [called.name, json.loads(called.arguments)],
        "schema": json.loads(filled),
        "responses": library.responses(input=QUESTION, **place).output_text,
    }


def langchain(url: str, model: str) -> dict[str, Any]:
    """langchain-openai, with structured output by each of its methods."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model=model, base_url=url, api_key="none", max_retries=0)
    responses = ChatOpenAI(model=model, base_url=url, api_key="none", max_retries=0, use_responses_api=True)
    methods = ("json_schema", "function_calling", "json_mode")
    calls = {choice: chat.bind_tools([WHERE], tool_choice=choice).invoke(QUESTION) for choice in (None, "any", "where")}
    return {
        "chat": chat.invoke(QUESTION).content,
        "stream": "".join(part.content for part in chat.stream(QUESTION)),
        **{name: chat.with_structured_output(Home, method=name).invoke(QUESTION).city for name in methods},
        **{
            f"call, {choice}": [[one["name"], one["args"]] for one in made.tool_calls] for choice, made in calls.items()
        },
        "responses": "".join(part["text"] for part in responses.invoke(QUESTION).content if part["type"] == "text"),
        "responses, schema": responses.with_structured_output(Home).invoke(QUESTION).city,
    }


def pydantic_ai(url: str, model: str) -> dict[str, Any]:
    """pydantic-ai, with an output type by each of its ways, through both of its models."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    made: dict[str, Any] = {}
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        asked = kind(model, provider=OpenAIProvider(base_url=url, api_key="none"))
        made[f"{kind.__name__}, text"] = Agent(asked).run_sync(QUESTION).output
        made[f"{kind.__name__}, output_type"] = Agent(asked, output_type=Home, retries=0).run_sync(QUESTION).output.city
        native = Agent(asked, output_type=NativeOutput(Home), retries=0)
        made[f"{kind.__name__}, native"] = native.run_sync(QUESTION).output.city
        made[f"{kind.__name__}, tool"] = Agent(asked, tools=[where], retries=0).run_sync(QUESTION).output

    async def streamed() -> str:
        asked = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))
        async with Agent(asked).run_stream(QUESTION) as answer:
            return [text async for text in answer.stream_text()][-1]

    return made | {"stream": asyncio.run(streamed())}


def instructor(url: str, model: str) -> dict[str, Any]:
    """instructor in its modes of tools, JSON and schemas."""
    import instructor as library
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    asked: Any = {"model": model, "messages": MESSAGES, "response_model": Home, "max_retries": 0}
    modes = (library.Mode.TOOLS, library.Mode.JSON, library.Mode.JSON_SCHEMA)
    return {mode.name: library.from_openai(client, mode=mode).chat.completions.create(**asked).city for mode in modes}


def inspect_ai(url: str, model: str) -> dict[str, Any]:
    """Evaluations with and without a tool, through the providers for OpenAI's two APIs."""
    os.environ |= {"INSPECT_DISPLAY": "none", "INSPECT_LOG_DIR": "logs"}
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool

    @tool
    def lookup() -> Tool:
        async def execute(name: str) -> str:
            """The city of a person.

            Args:
                name: the person.
            """
            return where(name)

        return execute

    made: dict[str, Any] = {}
    rows = [Sample(input=f"Where does {name} live?", target=city) for name, city in HOMES.items()]
    for provider in ("openai-api/local", "openai"):
        for name, solver in (("plain", [generate()]), ("tool", [use_tools(lookup()), generate()])):
            asked = get_model(f"{provider}/{model}", base_url=url, api_key="none")
            (log,) = eval(Task(dataset=rows, solver=solver, scorer=includes()), model=asked)
            value = log.results.scores[0].metrics["accuracy"].value if log.results else str(log.error)
            made[f"{provider}, {name}"] = [log.status, value]
    return made


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    print(json.dumps(globals()[name](*words)))

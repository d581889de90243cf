"""The adapters with the real frameworks: schemas, a skill run, errors, approvals and cancellation."""

import asyncio
import importlib
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from pydantic import SecretStr

from apexbridge import Client
from apexbridge.integrations.offer import call_tool, offered_tools
from tests.chat.live import Live
from tests.chat.upstream import KEY, Step, Upstream, call
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # the frameworks take seconds to import
Json = dict[str, Any]
NAMES = ["search_skills", "load_skill", "run_skill", "run_code", "file_read", "file_write", "list_files"]
ADD = call("run_skill", {"name": "add-numbers", "input": {"numbers": [20, 22]}})
_numbers = itertools.count(1)


def wipe() -> Json:
    """A call with new input: a repeated call would reuse the pending approval."""
    return call("run_skill", {"name": "wipe-disk", "input": {"what": f"all {next(_numbers)}"}})


def play_call(upstream: Upstream, *calls: Json) -> str:
    """A model that makes calls, and then repeats the last result."""
    return upstream.play(Step(calls=list(calls)), lambda body: Step(text=f"Read: {body['messages'][-1]['content']}"))


@pytest.fixture(scope="module", autouse=True)
def _frameworks() -> None:
    """Import them outside of the event loop."""
    for module in ("pydantic_ai.models.openai", "langchain_openai", "agents", "openai"):
        importlib.import_module(module)


@pytest.fixture
async def openai(upstream: Upstream) -> AsyncIterator[Any]:
    """The client with which the frameworks reach their model."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=upstream.url, api_key=KEY) as opened:
        yield opened


@pytest.fixture
async def client(server: Live) -> AsyncIterator[Client]:
    async with Client(server.url) as opened:
        yield opened


async def running(client: Client) -> list[str]:
    page = await client.runs.list(skill="sleep-long", state="running")
    return [run.id for run in page.executions]


async def cancel_while_running(client: Client, work: Any) -> None:
    """Cancel a call of the framework while its skill runs, and wait until the server has cancelled the run."""
    before = set(await running(client))
    task = asyncio.ensure_future(work)

    async def started() -> set[str]:
        return set(await running(client)) - before

    await until(started)
    (id,) = await started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.runs.wait(id)).error_code == "CANCELLED"


# ------------------------------------------------------------------------------------------------------------- shared
async def test_the_offered_tools_are_few_and_can_be_chosen(client: Client) -> None:
    assert [tool.name for tool in await offered_tools(client)] == NAMES
    chosen = await offered_tools(client, ["calculate", "skill:add-numbers"])
    assert [tool.name for tool in chosen] == ["calculate", "skill__add-numbers"]


async def test_an_answer_of_a_person_decides_about_a_dangerous_call(client: Client) -> None:
    seen: list[Mapping[str, Any]] = []

    async def agree(details: Mapping[str, Any]) -> bool:
        seen.append(details)
        return True

    async def refuse(details: Mapping[str, Any]) -> bool:
        return False

    arguments = {"name": "wipe-disk", "input": {"what": f"all {next(_numbers)}"}}
    refused = await call_tool(client, "run-skill", arguments, workspace=None, approve=refuse)
    assert (refused.is_error, "did not agree" in refused.text) == (True, True)

    async def not_asked(details: Mapping[str, Any]) -> None:
        return None

    for approve in (None, not_asked):
        unasked = await call_tool(client, "run-skill", arguments, workspace=None, approve=approve)
        assert "apex approvals approve" in unasked.text
    done = await call_tool(client, "run-skill", arguments, workspace=None, approve=agree)
    assert (done.is_error, done.text.endswith("wiped")) == (False, True)
    assert seen[0]["confirm"] == "This wipes everything."


# -------------------------------------------------------------------------------------------------------- Pydantic AI
def pydantic_agent(openai: Any, model: str, client: Client, **options: Any) -> Any:
    from pydantic_ai import Agent, DeferredToolRequests
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from apexbridge.integrations.pydantic_ai import ApexBridgeToolset

    chat = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=openai))
    return Agent(chat, toolsets=[ApexBridgeToolset(client, **options)], output_type=[str, DeferredToolRequests])


async def test_pydantic_ai_runs_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    model = play_call(upstream, ADD)
    result = await pydantic_agent(openai, model, client).run("How much is 20 + 22?")
    assert result.output.endswith("sum 42")
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.bodies(model)[0]["tools"]}
    assert list(offered) == NAMES
    assert offered["run_skill"]["parameters"]["required"] == ["name"]
    properties = offered["run_skill"]["parameters"]["properties"]
    assert properties.keys() == (await client.tools.show("run-skill")).parameters["properties"].keys()


async def test_pydantic_ai_gives_errors_to_the_model(client: Client, upstream: Upstream, openai: Any) -> None:
    wrong = call("run_skill", {"name": "add-numberz"})
    result = await pydantic_agent(openai, play_call(upstream, wrong), client).run("?")
    assert "add-numbers" in result.output
    invalid = call("run_code", {"language": "cobol", "code": ""})
    result = await pydantic_agent(openai, play_call(upstream, invalid), client).run("?")
    assert "INVALID_INPUT" in result.output


async def test_pydantic_ai_asks_for_approval(client: Client, upstream: Upstream, openai: Any) -> None:
    from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolDenied

    for decision, text in ((True, "wiped"), (ToolDenied("Not today."), "Not today.")):
        agent = pydantic_agent(openai, play_call(upstream, wipe()), client)
        paused = await agent.run("Clean up.")
        assert isinstance(paused.output, DeferredToolRequests)
        (asked,) = paused.output.approvals
        assert paused.output.metadata[asked.tool_call_id]["confirm"] == "This wipes everything."
        results = DeferredToolResults(approvals={asked.tool_call_id: decision})
        done = await agent.run(message_history=paused.all_messages(), deferred_tool_results=results)
        assert text in done.output
    agent = pydantic_agent(openai, play_call(upstream, wipe()), client, approvals=False)
    assert "CONFIRMATION_REQUIRED" in (await agent.run("Clean up.")).output


async def test_pydantic_ai_cancels_the_run_of_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    model = play_call(upstream, call("run_skill", {"name": "sleep-long"}))
    await cancel_while_running(client, pydantic_agent(openai, model, client).run("Wait."))


# ---------------------------------------------------------------------------------------------------------- LangChain
async def langchain_answer(openai: Any, model: str, client: Client, **options: Any) -> tuple[str, list[Any]]:
    """Ask a model, make its calls, and ask again, as an agent does; returns the answer and the tool messages."""
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    from apexbridge.integrations.langchain import apexbridge_tools

    tools = {tool.name: tool for tool in await apexbridge_tools(client, **options)}
    own = {"root_async_client": openai, "async_client": openai.chat.completions}
    chat = ChatOpenAI(model=model, api_key=SecretStr(KEY), **own).bind_tools(list(tools.values()))
    messages: list[Any] = [HumanMessage("Do it.")]
    answer = await chat.ainvoke(messages)
    messages.append(answer)
    made = [await tools[asked["name"]].ainvoke(asked) for asked in answer.tool_calls]
    final = await chat.ainvoke([*messages, *made])
    return str(final.content), made


async def test_langchain_runs_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    model = play_call(upstream, ADD)
    text, (message,) = await langchain_answer(openai, model, client)
    assert text.endswith("sum 42")
    assert (message.status, message.artifact) == ("success", {"files": []})
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.bodies(model)[0]["tools"]}
    assert list(offered) == NAMES
    properties = offered["run_skill"]["parameters"]["properties"]
    assert properties == (await client.tools.show("run-skill")).parameters["properties"]


async def test_langchain_gives_errors_to_the_model(client: Client, upstream: Upstream, openai: Any) -> None:
    wrong = call("run_skill", {"name": "add-numberz"})
    text, (message,) = await langchain_answer(openai, play_call(upstream, wrong), client)
    assert (message.status, "add-numbers" in text) == ("error", True)
    text, _ = await langchain_answer(openai, play_call(upstream, wipe()), client)
    assert "CONFIRMATION_REQUIRED" in text


async def test_langchain_asks_for_approval_by_a_function(client: Client, upstream: Upstream, openai: Any) -> None:
    async def agree(details: Mapping[str, Any]) -> bool:
        return bool(details["confirm"] == "This wipes everything.")

    text, _ = await langchain_answer(openai, play_call(upstream, wipe()), client, approve=agree)
    assert text.endswith("wiped")


async def test_langchain_cancels_the_run_of_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    model = play_call(upstream, call("run_skill", {"name": "sleep-long"}))
    await cancel_while_running(client, langchain_answer(openai, model, client))


# ------------------------------------------------------------------------------------------------------ OpenAI Agents
async def agents_agent(openai: Any, model: str, client: Client, **options: Any) -> Any:
    from agents import Agent, OpenAIChatCompletionsModel, set_tracing_disabled

    from apexbridge.integrations.openai_agents import apexbridge_tools

    set_tracing_disabled(True)
    chat = OpenAIChatCompletionsModel(model, openai)
    return Agent(name="helper", model=chat, tools=[*await apexbridge_tools(client, **options)])


async def test_openai_agents_runs_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    from agents import Runner

    model = play_call(upstream, ADD)
    result = await Runner.run(await agents_agent(openai, model, client), "How much is 20 + 22?")
    assert result.final_output.endswith("sum 42")
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.bodies(model)[0]["tools"]}
    assert list(offered) == NAMES
    assert offered["run_skill"]["parameters"] == (await client.tools.show("run-skill")).parameters


async def test_openai_agents_gives_errors_to_the_model(client: Client, upstream: Upstream, openai: Any) -> None:
    from agents import Runner

    for wrong, text in (
        (call("run_skill", {"name": "add-numberz"}), "add-numbers"),
        (call("run_code", {"language": "cobol", "code": ""}), "INVALID_INPUT"),
    ):
        agent = await agents_agent(openai, play_call(upstream, wrong), client)
        assert text in (await Runner.run(agent, "?")).final_output


async def test_openai_agents_asks_for_approval(client: Client, upstream: Upstream, openai: Any) -> None:
    from agents import Runner

    agent = await agents_agent(openai, play_call(upstream, wipe()), client)
    paused = await Runner.run(agent, "Clean up.")
    (asked,) = paused.interruptions
    state = paused.to_state()
    state.approve(asked)
    assert (await Runner.run(agent, state)).final_output.endswith("wiped")
    agent = await agents_agent(openai, play_call(upstream, wipe()), client)
    paused = await Runner.run(agent, "Clean up.")
    state = paused.to_state()
    state.reject(paused.interruptions[0])
    assert "wiped" not in (await Runner.run(agent, state)).final_output
    agent = await agents_agent(openai, play_call(upstream, wipe()), client, approvals=False)
    assert "CONFIRMATION_REQUIRED" in (await Runner.run(agent, "Clean up.")).final_output


async def test_openai_agents_cancels_the_run_of_a_skill(client: Client, upstream: Upstream, openai: Any) -> None:
    from agents import Runner

    model = play_call(upstream, call("run_skill", {"name": "sleep-long"}))
    await cancel_while_running(client, Runner.run(await agents_agent(openai, model, client), "Wait."))

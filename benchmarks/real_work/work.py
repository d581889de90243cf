"""Plays the tasks: a server, a scripted model, the packages, and the checks."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from apexbridge.bridge import Bridge
from apexbridge.sandbox.bundles import BUNDLES
from apexbridge.settings import Settings
from benchmarks.measuring import Comparison, within_limit
from benchmarks.real_work.tasks import CHECK_PACKAGES, TASKS, Code, Skill, Task

BUNDLES_USED = ("documents", "data")
GOALS = {"python": 4.0, "javascript": 4.0, "shell": 10.0}
"""A call may take this many times as long as the same code in a plain process. A plain shell starts in 2 ms."""
Json = dict[str, Any]


async def run() -> list[Comparison]:
    """Play all tasks; the first figure is the number of those that failed."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        checker = await asyncio.to_thread(_checker, base / "checker")
        async with _scripted_model() as url, _bridge(base / "data", url) as bridge:
            await _prepare(bridge, base)
            failed: list[str] = []
            figures: list[Comparison] = []
            for number, task in enumerate(TASKS):
                try:
                    figures += await _play(bridge, task, number, base, checker)
                except AssertionError as error:
                    print(f"FAILED: {task.name}: {error}", flush=True)
                    failed.append(task.name)
            done = within_limit("tasks that failed, and one", len(failed) + 1, 1, unit="of 11")
            print(f"{len(TASKS) - len(failed)} of {len(TASKS)} tasks succeeded", flush=True)
            return [done, *figures]


def _checker(folder: Path) -> str:
    """An interpreter with libraries that did not make the files."""
    print("installing the libraries that check the results", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([f"{folder}/bin/pip", "install", "--quiet", *CHECK_PACKAGES], check=True, stderr=subprocess.DEVNULL)
    return f"{folder}/bin/python"


@asynccontextmanager
async def _bridge(data_dir: Path, url: str) -> AsyncIterator[Bridge]:
    settings = Settings(data_dir=data_dir, llm_base_url=url, llm_model="scripted", sandbox_memory_mb=512)
    async with Bridge.open(settings, watch=False, indexing="on-demand") as bridge:
        await bridge.prepare_sandbox()
        yield bridge


async def _prepare(bridge: Bridge, base: Path) -> None:
    for name in BUNDLES_USED:
        print(f"installing the bundle {name}: {', '.join(BUNDLES[name])}", flush=True)
        await bridge.packages.install(name)
    for skill in {skill.name: skill for task in TASKS for skill in task.skills}.values():
        folder = base / "skills" / skill.name
        for path, text in skill.package().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        await bridge.skills.install_skill(folder)
        if skill.packages:
            print(f"installing {', '.join(skill.packages)} for {skill.name}", flush=True)
            await bridge.skills.change_dependencies(skill.name, add=list(skill.packages))
            await bridge.skills.install_dependencies(skill.name)


async def _play(bridge: Bridge, task: Task, number: int, base: Path, checker: str) -> list[Comparison]:
    """Let the model do a task, check its file, and compare each call with a plain process of the same code."""
    calls = [("load_skill", {"name": skill.name}) for skill in task.skills] + [step.call for step in task.steps]
    question = json.dumps({"calls": calls})
    workspace = f"task-{number}"
    answer = await bridge.chat.execute(
        [{"role": "user", "content": question}], x_bridge={"workspace": workspace, "debug": True}
    )
    steps = [step for step in answer.x_bridge["trajectory"] if step["kind"] == "tool"]
    assert len(steps) == len(calls), (answer.content, steps)
    problems = [step for step in steps if not step["success"]]
    assert not problems, f"{problems[0]} {answer.content}"
    names = [file["path"] for file in answer.x_bridge["files"]]
    assert task.result in names, names
    copy = base / f"result-{number}-{Path(task.result).name}"
    with await bridge.workspaces.open_file(workspace, task.result) as file:
        copy.write_bytes(file.read())
    checked = await asyncio.to_thread(_check, checker, task.check, copy)
    assert checked.returncode == 0, checked.stderr[-1000:]
    plain = await asyncio.to_thread(_play_plainly, bridge, task, base / f"plain-{number}", base / "skills")
    ours = [step["durationMs"] for step in steps[len(task.skills) :]]
    return [
        Comparison(
            what=f"{task.name}, step {index + 1} ({step.language})",
            ours_ms=mine,
            baseline="a plain process",
            baseline_ms=theirs,
            goal=GOALS[step.language],
            spread=1.0,
        )
        for index, (step, mine, theirs) in enumerate(zip(task.steps, ours, plain, strict=True))
    ]


def _check(checker: str, code: str, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([checker, "-c", f"path = {str(path)!r}\n{code}"], capture_output=True, text=True, check=False)


def _play_plainly(bridge: Bridge, task: Task, folder: Path, skills: Path) -> list[float]:
    """The same steps in plain processes, with the same packages; returns the milliseconds of each."""
    folder.mkdir()
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(sys.executable)
    layers = [str(path) for path in bridge.packages.layers().values()]
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(layers),
        "NODE_PATH": os.pathsep.join(_node_packages(bridge, task.skills)),
    }
    times = []
    for step in task.steps:
        begun = time.perf_counter()
        finished = subprocess.run(
            _command(step, skills, folder), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        times.append((time.perf_counter() - begun) * 1000)
        is_module = step.language == "javascript" and "import " in step.code
        assert finished.returncode == 0 or is_module, finished.stderr[-1000:]
    return times


def _node_packages(bridge: Bridge, skills: Sequence[Skill]) -> list[str]:
    folders = (bridge.settings.data_dir / "layers").glob("**/node_modules")
    return [str(folder) for folder in folders if not any(part == "node_modules" for part in folder.parent.parts)]


def _command(step: Code, skills: Path, folder: Path) -> list[str]:
    code = re.sub(r"/skills/", f"{skills}/", step.code)
    match step.language:
        case "python":
            return [sys.executable, "-c", code]
        case "javascript":
            return ["node", "--input-type=module" if "import " in code else "--input-type=commonjs", "-e", code]
        case _:
            return ["bash", "-c", code]


# ------------------------------------------------------------------------------------------------- the scripted model
@asynccontextmanager
async def _scripted_model() -> AsyncIterator[str]:
    """A model server that makes the calls in the user's message one after the other, and then answers."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", _complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


async def _complete(request: web.Request) -> web.Response:
    body = await request.json()
    messages = body["messages"]
    question = next(message for message in messages if message["role"] == "user")
    calls = json.loads(question["content"])["calls"]
    results = [message for message in messages if message["role"] == "tool"]
    if len(results) < len(calls) and not any(_has_failed(result) for result in results):
        name, arguments = calls[len(results)]
        call = {
            "id": f"call-{len(results)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        message: Json = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        message = {"role": "assistant", "content": str(results[-1]["content"]) if results else "nothing to do"}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    return web.json_response({"id": "1", "object": "chat.completion", "model": "scripted", "choices": [choice]})


def _has_failed(result: Mapping[str, Any]) -> bool:
    return str(result["content"]).startswith(("Failed:", "Error"))

"""Python scripts and modules run as their authors ran them: what they can import, and how `-m` behaves."""

import json

import anyio
import pytest

from tests.sandbox.bench import Bench, OutputRecorder

pytestmark = pytest.mark.anyio
SHOWS_MODULE = """
import json, sys, __main__
print(json.dumps([__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], __main__.__name__]))
"""


# -------------------------------------------------------------------------------------------------------------- imports
async def test_modules_next_to_the_script_and_in_the_root_of_the_skill_can_be_imported(each_backend: Bench) -> None:
    beside = {
        "scripts/helper.py": "WHERE = 'scripts'",
        "scripts/near.py": "WHERE = 'scripts'",
        "near.py": "WHERE = 'root'",
        "shared/words.py": "WORD = 'hello'",
        "office/__init__.py": "",
        "office/pack.py": "from shared.words import WORD",
    }
    text = """
import json, sys
import helper, near, scripts.helper
from office.pack import WORD
print(json.dumps([helper.WHERE, near.WHERE, scripts.helper.WHERE, WORD, sys.path[:2]]))
"""
    found = await each_backend.run_json(text, files_beside=beside)
    folder, root = found.pop()
    assert found == ["scripts", "scripts", "scripts", "hello"], "a module next to the script comes first"
    assert folder == f"{root}/scripts"


async def test_a_script_in_the_root_has_the_root_once_in_its_path(bench: Bench) -> None:
    text = "import json, sys; print(json.dumps(sys.path.count(sys.path[0])))"
    assert await bench.run_json("", script="run.py", files_beside={"run.py": text}) == 1


async def test_a_module_in_the_root_shadows_the_standard_library_and_a_plain_folder_does_not(bench: Bench) -> None:
    beside = {"csv.py": "MINE = True", "json/notes.txt": "", "argparse.md": "", "datetime/__init__.py": "MINE = True"}
    text = "import argparse, csv, datetime, json; print(json.dumps([csv.MINE, datetime.MINE, argparse.__name__]))"
    assert await bench.run_json(text, files_beside=beside) == [True, True, "argparse"]


# -------------------------------------------------------------------------------------------------------------- modules
@pytest.mark.parametrize("package", [{}, {"scripts/__init__.py": ""}], ids=["namespace", "package"])
async def test_a_module_runs_as_by_python_m_in_the_skills_folder(each_backend: Bench, package: dict[str, str]) -> None:
    beside = {"scripts/show.py": SHOWS_MODULE, **package}
    report = await each_backend.run_json(
        "", script="scripts/show.py", module="scripts.show", args=("a", "-b"), files_beside=beside
    )
    name, package_name, spec, file, argv, path, main = report
    assert (name, package_name, spec, main) == ("__main__", "scripts", "scripts.show", "__main__")
    assert file.endswith("/scripts/show.py")
    assert argv == [file, "a", "-b"]
    assert file == f"{path}/scripts/show.py", "the root comes first, and the script's folder is not there"


async def test_a_module_can_import_relatively_and_is_found_below_packages(bench: Bench) -> None:
    beside = {
        "scripts/sub/mod.py": "from . import near\nfrom ..words import WORD\nprint(__package__, near.WORD, WORD)",
        "scripts/sub/near.py": "WORD = 'near'",
        "scripts/words.py": "WORD = 'above'",
    }
    result = await bench.run("", script="scripts/sub/mod.py", module="scripts.sub.mod", files_beside=beside)
    assert (result.stdout, result.stderr) == ("scripts.sub near above\n", "")


async def test_a_package_runs_its_main_module(bench: Bench) -> None:
    beside = {"scripts/tool/__init__.py": "", "scripts/tool/__main__.py": SHOWS_MODULE}
    report = await bench.run_json("", script="scripts/tool/__main__.py", module="scripts.tool", files_beside=beside)
    assert report[:3] == ["__main__", "scripts.tool", "scripts.tool.__main__"]


async def test_a_failing_module_shows_its_own_frames_only(bench: Bench) -> None:
    beside = {"scripts/fails.py": "import sys\ndef fail(): raise KeyError('files')\nfail()"}
    result = await bench.run("", script="scripts/fails.py", module="scripts.fails", files_beside=beside)
    assert (result.error, result.exit_code) == ("KeyError: 'files'", 1)
    assert "runpy" not in result.stderr
    assert "loaders" not in result.stderr
    assert result.stderr.count("fails.py") == 2


@pytest.mark.parametrize(("text", "code"), [("import sys; sys.exit(7)", 7), ("raise SystemExit('stop')", 1)])
async def test_the_exit_code_of_a_module_is_reported(bench: Bench, text: str, code: int) -> None:
    result = await bench.run("", script="scripts/x.py", module="scripts.x", files_beside={"scripts/x.py": text})
    assert result.exit_code == code


# --------------------------------------------------------------------------------------------------------------- output
WAITS = "import sys, time\nprint('step 1', end='')\n{more}\nwhile True: time.sleep(1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WAITS.format(more=""), "step 1"),
        (WAITS.format(more="sys.stdout.buffer.write(b'!')"), "step 1!"),
    ],
    ids=["text", "bytes"],
)
async def test_output_arrives_while_the_script_runs_without_newline_and_without_flush(
    each_backend: Bench, text: str, expected: str
) -> None:
    recorder = OutputRecorder()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await each_backend.run(text, listener=recorder)

        tasks.start_soon(run)
        await recorder.wait_for(expected)
        tasks.cancel_scope.cancel()
    assert recorder.text == expected
    assert {stream for stream, _ in recorder.chunks} == {"stdout"}


async def test_a_large_write_to_unbuffered_stdout_is_complete(bench: Bench) -> None:
    text = "import sys; sys.stdout.buffer.write(b'x' * 3_000_000); print('y' * 3_000_000)"
    result = await bench.run(text)
    assert result.stdout == "x" * 3_000_000 + "y" * 3_000_000 + "\n"


async def test_an_output_stream_can_be_configured_by_the_script(bench: Bench) -> None:
    text = "import sys, json; sys.stdout.reconfigure(encoding='utf-8'); print(json.dumps(sys.stdout.write_through))"
    assert json.loads((await bench.run(text)).stdout) is True


async def test_both_streams_are_reported_in_the_order_in_which_they_were_read(each_backend: Bench) -> None:
    """The script waits until each write was read: what is written in between two reads has no order across streams."""
    text = """
import array, fcntl, sys, termios, time
def is_read(stream):
    waiting = array.array("i", [0])
    fcntl.ioctl(stream.fileno(), termios.FIONREAD, waiting)
    return not waiting[0]
for number in range(50):
    stream = (sys.stdout, sys.stderr)[number % 2]
    stream.write(f"{number} ")
    while not is_read(stream): time.sleep(0)
"""
    recorder = OutputRecorder()
    result = await each_backend.run(text, listener=recorder)
    assert result.success, result.stderr
    assert recorder.text.split() == [str(number) for number in range(50)]


async def test_a_traceback_comes_after_the_output_before_it(bench: Bench) -> None:
    recorder = OutputRecorder()
    await bench.run("print('so far')\nraise KeyError('files')", listener=recorder)
    assert recorder.text.startswith("so far")
    assert recorder.text.rstrip().endswith("KeyError: 'files'")

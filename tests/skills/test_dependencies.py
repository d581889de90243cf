"""Dependencies that a skill may declare, and declarations that are refused."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.skills.package.dependencies import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_REQUIREMENTS,
    Dependencies,
    read_dependencies,
    script_blocks,
)

REFERENCE = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""Copied from PEP 723."""
SCRIPT = """#!/usr/bin/env python3
# /// script
# requires-python = ">=3.8"
# dependencies = [
#   "Requests<3",
#   "rich",
# ]
# ///
import requests
"""


def skill(folder: Path, **files: str | bytes) -> Path:
    """Write these files. In their names, `__` becomes a slash and `_` a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def block(toml: str) -> str:
    return "\n".join(["# /// script", *(f"# {line}".rstrip() for line in toml.splitlines()), "# ///", ""])


# ------------------------------------------------------------------------------------------------------------- found
@pytest.mark.requirement("B21")
def test_requirements_package_json_and_script_blocks_are_all_read(tmp_path: Path) -> None:
    package = {"dependencies": {"zod": "^3.1", "@scope/x": "latest"}, "devDependencies": {"jest": "file:../evil"}}
    folder = skill(
        tmp_path,
        requirements_txt="numpy >= 1.20, <3  # fast\n\n# nothing here\nrich\n",
        scripts__run_py=SCRIPT,
        scripts__other_py="print('# /// script')\n",
        package_json=json.dumps(package),
    )
    found = read_dependencies(folder)
    assert found == Dependencies(
        python=("numpy<3,>=1.20", "requests<3", "rich"),
        node=(("@scope/x", "latest"), ("zod", "^3.1")),
        sources=("requirements.txt", "package.json", "scripts/run.py (PEP 723)"),
    )
    assert not found.is_empty
    assert found.node_requirements == ("@scope/x@latest", "zod@^3.1")


def test_a_skill_without_declarations_needs_no_layer(tmp_path: Path) -> None:
    found = read_dependencies(
        skill(tmp_path, a_py="import os\n", package_json='{"type": "module"}', x_md="# /// script")
    )
    assert found == Dependencies()
    assert found.is_empty
    assert (found.python_key("cpython-311"), found.node_key("node-20")) == (None, None)


def test_dependency_files_are_read_beside_the_scripts_and_not_deeper(tmp_path: Path) -> None:
    found = read_dependencies(
        skill(
            tmp_path,
            scripts__requirements_txt="a\n",
            scripts__package_json='{"dependencies": {"b": "1"}}',
            assets__requirements_txt="-r evil\n",
            scripts__deep__package_json='{"dependencies": {"c": "1"}}',
            assets__deep__tool_py=block('dependencies = ["d"]'),
        )
    )
    assert (found.python, found.node, found.problems) == (("a", "d"), (("b", "1"),), ())


@pytest.mark.requirement("B21")
def test_order_repetition_and_spelling_do_not_change_a_key(tmp_path: Path) -> None:
    one = skill(
        tmp_path / "one",
        requirements_txt="Foo_Bar[b,a]>=1,<2\nx\n",
        package_json='{"dependencies": {"a": ">=1  <2||3", "b": ""}}',
    )
    other = skill(
        tmp_path / "other",
        requirements_txt="x\r\nfoo.bar [A, b] (<2, >=1)\r\nx; python_version > '3'\n",
        package_json='{"dependencies": {"b": "*", "a": ">=1 <2 || 3"}}',
    )
    first, second = read_dependencies(one), read_dependencies(other)
    assert first.problems == second.problems == ()
    assert first.python_key("cpython-311") == second.python_key("cpython-311")
    assert first.node_key("node-20") == second.node_key("node-20")


@pytest.mark.requirement("B21")
def test_each_version_and_runtime_has_its_own_key() -> None:
    dependencies = Dependencies(python=("a==1",), node=(("a", "1"),))
    keys = {
        dependencies.python_key("cpython-311"),
        dependencies.python_key("cpython-312"),
        dependencies.node_key("node-20"),
        Dependencies(python=("a==2",)).python_key("cpython-311"),
        Dependencies(python=("a@1",)).python_key("node-20"),
    }
    assert len(keys) == 5
    assert all(key and re.fullmatch(r"[0-9a-f]{32}", key) for key in keys)


def test_requirements_whose_markers_do_not_match_are_dropped(tmp_path: Path) -> None:
    text = "a; sys_platform == 'win32'\nb; python_version >= '3.8'\nc; extra == 'all'\n"
    found = read_dependencies(skill(tmp_path, requirements_txt=text))
    assert (found.python, found.problems) == (("b",), ())


# ----------------------------------------------------------------------------------------------------------- refused
@pytest.mark.requirement("B21")
@pytest.mark.parametrize(
    "line",
    [
        "-r other.txt",
        "-e .",
        "-e git+https://example.com/x.git",
        "--index-url https://example.com/simple",
        "--extra-index-url=https://example.com/simple",
        "--find-links /tmp",
        "-c constraints.txt",
        "--no-binary :all:",
        "https://example.com/x-1.0.tar.gz",
        "git+ssh://git@example.com/x.git",
        "name @ https://example.com/x.whl",
        "name@file:///tmp/x.whl",
        "name [extra] @ https://example.com/x.whl ; python_version > '3'",
        "./folder",
        "../folder",
        "/tmp/folder",
        "folder/",
        "~/folder",
        ".",
        "C:\\folder",
        "x-1.0-py3-none-any.whl",
        "x-1.0.tar.gz",
        "x.zip[extra]",
        "name===../../tmp",
        "name===1.zip",
        "name==1.0 --hash=sha256:0000",
        "name==1.0 \\",
        "name==1.0 --config-settings x=y",
        "name==${HOME}",
        "name ==",
        "name; python_version >",
        "name; nothing == '1'",
        "two names",
        "name" + "x" * 500,
        "name; " + "(" * 480,
    ],
)
def test_a_requirement_that_is_not_a_plain_name_and_version_is_refused(tmp_path: Path, line: str) -> None:
    found = read_dependencies(skill(tmp_path, requirements_txt=f"# first\n{line}\n"))
    assert found.python == ()
    assert len(found.problems) == 1
    assert found.problems[0].startswith("requirements.txt:2: ")
    in_script = read_dependencies(skill(tmp_path / "script", x_py=block(f"dependencies = [\n{json.dumps(line)}]")))
    assert in_script.python == ()
    assert [problem.split(" ")[0] for problem in in_script.problems] in (["x.py:3:"], ["x.py:1:"])


@pytest.mark.requirement("B21")
@pytest.mark.parametrize(
    "versions",
    [
        "file:../x",
        "link:../x",
        "git+https://example.com/x.git",
        "git://example.com/x",
        "git@example.com:x/y.git",
        "https://example.com/x.tgz",
        "npm:other@1",
        "user/repo",
        "github:user/repo",
        "user/repo#semver:^1",
        "workspace:*",
        "workspaces",
        ".",
        "..",
        "./x",
        "~/x",
        "x.tgz",
        "1.0.0-x.tgz",
        "1.0.0-x.tar.gz",
        "C:\\x",
        "1 ||",
        ">=1 and <2",
        "1" * 600,
        "=1 " * 100 + "!",
        "1-" + "-" * 400 + " !",
        "^1\u0000",
        1,
        None,
        ["1"],
        {"version": "1"},
    ],
)
def test_an_npm_version_that_is_not_a_range_or_tag_is_refused(tmp_path: Path, versions: object) -> None:
    if versions == "workspaces":
        package = {"dependencies": {}, "workspaces": ["packages/*"]}
    else:
        package = {"dependencies": {"name": versions}}
    found = read_dependencies(skill(tmp_path, package_json=json.dumps(package, indent=1)))
    assert found.node == ()
    assert len(found.problems) == 1
    assert found.problems[0].startswith("package.json:3: ")


@pytest.mark.parametrize(
    "versions",
    [
        "1",
        "v1.2",
        "=1.2.3",
        "^1.2.3",
        "~1.2",
        "~>1",
        ">=1 <2",
        ">= 1.0.0",
        "1 - 2.3",
        "1.x",
        "*",
        "",
        "x",
        "latest",
        "next-11",
        "1.0.0-rc.1+build.5",
        "<= 3",
        "1||2",
        "1 || 2 || >=3.0.0-0 <4",
    ],
)
def test_a_plain_range_or_tag_is_accepted(tmp_path: Path, versions: str) -> None:
    found = read_dependencies(skill(tmp_path, package_json=json.dumps({"dependencies": {"name": versions}})))
    assert found.problems == ()
    assert len(found.node) == 1


@pytest.mark.parametrize("name", ["../x", "a b", "", "-g", ".x", "@x", "@a/b/c", "a@1", "a:b", "a\nb"])
def test_an_invalid_npm_package_name_is_refused(tmp_path: Path, name: str) -> None:
    found = read_dependencies(skill(tmp_path, package_json=json.dumps({"dependencies": {name: "1"}})))
    assert (found.node, len(found.problems)) == ((), 1)


def test_two_versions_of_one_node_package_are_a_problem(tmp_path: Path) -> None:
    found = read_dependencies(
        skill(
            tmp_path,
            package_json='{"dependencies": {"a": "1"}}',
            scripts__package_json='{"dependencies": {"a": "2"}}',
        )
    )
    assert [problem.split(" ")[0] for problem in found.problems] == ["scripts/package.json:1:"]


# ----------------------------------------------------------------------------------------------------------- PEP 723
@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "# /// script",
                "# /// other-1",
                "# ///",
                "# /// script ",
                "#",
                "# x",
                "#x",
                "",
                "code",
                " # ///",
                "# \x0c",
            ]
        ),
        max_size=14,
    )
)
def test_script_blocks_match_the_reference_regex(lines: list[str]) -> None:
    text = "\n".join(lines)
    expected = [
        "".join(line.removeprefix("#").removeprefix(" ") for line in match["content"].splitlines(keepends=True))
        for match in REFERENCE.finditer(text)
        if match["type"] == "script"
    ]
    # Unlike ours, `splitlines` above also splits at a form feed inside a line.
    assert [toml.replace("\x0c", "") for _, toml in script_blocks(text)] == [
        content.removesuffix("\n").replace("\x0c", "") for content in expected
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (block("x = 1") + "code\n" + block("y = 1"), 5),
        (block("dependencies = ["), 1),
        (block("a = " + "[" * 5000), 1),
        (block('dependencies = "a"'), 1),
        (block("dependencies = [1]"), 1),
        (block('requires-python = ">=99"'), 1),
        (block('requires-python = "new"'), 1),
        (block("requires-python = 3"), 1),
        (block('dependencies = ["a"]\n[tool.uv.sources]\na = {git = "https://example.com/a"}'), 1),
        (block('[[tool.uv.index]]\nurl = "https://example.com"'), 1),
    ],
)
def test_an_invalid_or_unsupported_block_is_a_problem(tmp_path: Path, text: str, line: int) -> None:
    problems = read_dependencies(skill(tmp_path, scripts__x_py=text)).problems
    assert [problem.split(" ")[0] for problem in problems] == [f"scripts/x.py:{line}:"]


def test_a_tool_table_without_sources_is_accepted(tmp_path: Path) -> None:
    found = read_dependencies(skill(tmp_path, x_py=block('dependencies = ["a"]\ntool = {uv = {quiet = true}}')))
    assert (found.python, found.problems) == (("a",), ())


# ------------------------------------------------------------------------------------------------------------ limits
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package_json", "{"),
        ("package_json", "[]"),
        ("package_json", '{"dependencies": []}'),
        ("package_json", "[" * 100_000),
        ("package_json", b"\xff"),
        ("requirements_txt", b"caf\xe9\n"),
        ("requirements_txt", b"#" * (MAX_FILE_BYTES + 1)),
        ("x_py", b"# /// script\n# \xff\n# ///\n"),
        ("x_py", b"#" * (MAX_FILE_BYTES + 1)),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, name: str, content: str | bytes) -> None:
    found = read_dependencies(skill(tmp_path, **{name: content}))
    assert (found.is_empty, len(found.problems)) == (True, 1)


def test_a_byte_order_mark_does_not_hide_dependencies(tmp_path: Path) -> None:
    folder = skill(tmp_path, requirements_txt="\ufeffa\n", x_py="\ufeff" + block('dependencies = ["b"]'))
    assert read_dependencies(folder).python == ("a", "b")


def test_requirements_above_the_limit_are_not_read(tmp_path: Path) -> None:
    many = MAX_REQUIREMENTS + 50
    lines = "".join(f"p{number}\n" for number in range(many))
    packages = json.dumps({"dependencies": {f"p{number}": "1" for number in range(many)}})
    listed = block(f"dependencies = {[f'p{number}' for number in range(many)]}")
    for files in ({"requirements_txt": lines}, {"package_json": packages}, {"x_py": listed}):
        found = read_dependencies(skill(tmp_path / next(iter(files)), **files))
        assert len(found.python) + len(found.node) == MAX_REQUIREMENTS
        assert len(found.problems) == 1


def test_a_folder_with_too_many_scripts_is_a_problem(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.py").touch()
    assert len(read_dependencies(tmp_path).problems) == 1


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    assert len(read_dependencies(tmp_path / "gone").problems) == 1


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    elsewhere = skill(tmp_path / "elsewhere", requirements_txt="secret\n", x_py=block('dependencies = ["secret"]'))
    folder = tmp_path / "skill"
    folder.mkdir()
    (folder / "requirements.txt").symlink_to(elsewhere / "requirements.txt")
    (folder / "x.py").symlink_to(elsewhere / "x.py")
    (folder / "scripts").symlink_to(elsewhere)
    assert read_dependencies(folder) == Dependencies()


def test_problems_and_sources_contain_no_terminal_escapes(tmp_path: Path) -> None:
    folder = skill(tmp_path, requirements_txt="\x1b[31m evil\n")
    (folder / "\x1b[2J.py").write_text(block("dependencies = 1"))
    (folder / "\x1b[3J.py").write_text(block('dependencies = ["a"]'))
    found = read_dependencies(folder)
    assert len(found.problems) == 2
    assert all(text.isprintable() for text in (*found.problems, *found.sources))

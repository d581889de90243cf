import pytest

from apexbridge.skills import Profile
from apexbridge.skills.package.skill import Reading
from apexbridge.skills.package.skill_md import read_skill_markdown


def read(text: str | bytes, folder: str = "git-commit", profile: Profile = "seed") -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return read_skill_markdown(data, folder=folder, profile=profile)


def errors(text: str | bytes, folder: str = "git-commit", profile: Profile = "seed") -> list[str]:
    return [str(error) for error in read(text, folder, profile).errors]


GOOD = "---\nname: git-commit\ndescription: Writes commit messages.\n---\n# Body\n"


@pytest.mark.requirement("C2")
def test_every_field_is_read() -> None:
    metadata = read(
        """---
name: git-commit
description: Writes commit messages.
version: 1.10
author: Ada
tags: [git, commit, git]
category: development
allowed-tools: Read, Bash(git add:*), Grep
mode: sandbox
permissions: [net:api.example.com:443, env:LANG]
timeout: 5000
dangerous: true
confirm: Really commit?
parameters: {type: object}
license: MIT
compatibility: needs git
metadata: {k: 1}
disable-model-invocation: true
anything: else
---
"""
    ).metadata
    assert metadata is not None
    assert (metadata.version, metadata.author, metadata.category) == ("1.10", "Ada", "development")
    assert metadata.tags == ("git", "commit")
    assert metadata.allowed_tools == ("Read", "Bash(git add:*)", "Grep")
    assert metadata.permissions == ("net:api.example.com:443", "env:LANG")
    assert (metadata.mode, metadata.timeout_ms, metadata.dangerous) == ("sandbox", 5000, True)
    assert metadata.confirm == "Really commit?"
    assert metadata.parameters == {"type": "object"}
    assert (metadata.license, metadata.compatibility, metadata.metadata) == ("MIT", "needs git", {"k": 1})
    assert metadata.disable_model_invocation


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ("Read Grep", ("Read", "Grep")),
        ("[Read, Grep]", ("Read", "Grep")),
        ("Read,Grep", ("Read", "Grep")),
        ("Bash(git add:*) Read", ("Bash(git add:*)", "Read")),
        ("\n  - Read\n  - Bash(ls -l)", ("Read", "Bash(ls -l)")),
    ],
)
def test_allowed_tools_may_be_a_list_or_a_string(written: str, tools: tuple[str, ...]) -> None:
    metadata = read(f"---\nname: git-commit\ndescription: d\nallowed-tools: {written}\n---\n").metadata
    assert metadata is not None
    assert metadata.allowed_tools == tools


def test_our_fields_may_be_under_metadata_apex() -> None:
    text = """---
name: git-commit
description: d
metadata:
  apex: {mode: direct, timeout: 9, dangerous: yes, confirm: Sure, entrypoint: ./run.py, permissions: [env:A]}
---
"""
    metadata = read(text).metadata
    assert metadata is not None
    assert (metadata.mode, metadata.timeout_ms, metadata.dangerous) == ("direct", 9, True)
    assert (metadata.confirm, metadata.entrypoint, metadata.permissions) == ("Sure", "run.py", ("env:A",))


@pytest.mark.requirement("C3")
def test_missing_fields_are_reported_together() -> None:
    assert errors("---\ndescription: d\n---\n") == ["Missing required fields: name"]
    assert errors("---\nversion: 1\n---\n") == ["Missing required fields: name, description"]
    assert errors("---\nname:\ndescription: '  '\n---\n") == ["Missing required fields: name, description"]


@pytest.mark.requirement("C3")
def test_a_name_that_differs_from_its_folder_is_refused() -> None:
    assert errors(GOOD.replace("name: git-commit", "name: other-name")) == [
        'Skill name mismatch: expected "git-commit", got "other-name"'
    ]


@pytest.mark.requirement("C2")
@pytest.mark.parametrize("name", ["Git", "git_commit", "-git", "gît", "a" * 65, "a b", "a/b", ".."])
def test_a_name_that_breaks_the_pattern_is_refused(name: str) -> None:
    assert any("name" in error for error in errors(GOOD.replace("git-commit", name), folder=name))


@pytest.mark.requirement("C2")
def test_the_longest_name_and_description_are_allowed() -> None:
    name = "a" * 64
    assert not errors(f"---\nname: {name}\ndescription: {'d' * 1024}\n---\n", folder=name)
    assert errors(f"---\nname: {name}\ndescription: {'d' * 1025}\n---\n", folder=name)


@pytest.mark.requirement("D15")
@pytest.mark.parametrize("name", ["stats", "growth", "problems", "search", "install", "reindex", "validate"])
@pytest.mark.parametrize("profile", ["seed", "lenient", "strict"])
def test_reserved_names_are_refused_by_every_profile(name: str, profile: Profile) -> None:
    assert any("reserved" in error for error in errors(GOOD.replace("git-commit", name), name, profile))


@pytest.mark.parametrize(
    "line",
    [
        "mode: sometimes",
        "timeout: soon",
        "timeout: 0",
        "timeout: -5",
        "dangerous: maybe",
        "dangerous: [1]",
        "tags: {a: b}",
        "name: [a]",
        "metadata: {apex: {entrypoint: [1]}}",
    ],
)
def test_an_invalid_value_is_an_error_with_its_line(line: str) -> None:
    text = GOOD.replace("# Body", "").replace("---\n", f"---\n{line}\n", 1)
    if line.startswith("name"):
        text = text.replace("name: git-commit\n", "")
    assert any("SKILL.md line 2" in error for error in errors(text))


def test_an_unclear_dangerous_value_counts_as_dangerous() -> None:
    metadata = read(GOOD.replace("---\n#", "dangerous: perhaps\n---\n#"), profile="lenient").metadata
    assert metadata is not None
    assert metadata.dangerous


def test_invalid_values_of_informational_fields_are_warnings() -> None:
    reading = read(GOOD.replace("---\n#", "metadata: text\ncompatibility: [a, b]\nparameters: 5\n---\n#"))
    assert reading.metadata is not None
    assert reading.metadata.compatibility == "a, b"
    assert len(reading.warnings) == 3


def test_an_unknown_permission_is_a_warning() -> None:
    reading = read(GOOD.replace("---\n#", "permissions: [everything, secret:TOKEN, 'fs:ro:/usr/share']\n---\n#"))
    assert [str(warning) for warning in reading.warnings] == [
        'SKILL.md line 4: permission "everything" is unknown; write net:HOST:PORT, env:NAME, secret:NAME or fs:ro:PATH'
    ]


@pytest.mark.parametrize("profile", ["seed", "lenient", "strict"])
def test_a_file_that_is_not_utf8_is_refused(profile: Profile) -> None:
    assert any("UTF-8" in error for error in errors(GOOD.encode() + b"caf\xe9\n", profile=profile))
    assert any("UTF-8" in error for error in errors(bytes(range(256)) * 12, profile=profile))


@pytest.mark.parametrize(
    "frontmatter",
    [
        "---\nname: x\ndescription: [a: b: c\n---\n# Title\n",
        "---\nname: x\ndescription: {a: b: c\n---\n# Title\n",
        "---\nname: x\n[a: b: c\n---\n# Title\n",
        "---\nname: x\n[a: b: c\n",
        "---\n[a: b: c\n",
    ],
)
def test_a_broken_frontmatter_without_a_readable_description_is_refused(frontmatter: str) -> None:
    reading = read(frontmatter, profile="lenient")
    assert reading.metadata is None
    assert reading.errors


def test_text_that_begins_with_brackets_is_still_a_description() -> None:
    reading = read("---\nname: x\ndescription: [beta] merges: fast\n---\n# Title\n", profile="lenient")
    assert reading.metadata is not None
    assert reading.metadata.description == "[beta] merges: fast"


def test_a_byte_order_mark_is_a_warning_and_in_the_strict_profile_an_error() -> None:
    assert read("\ufeff" + GOOD).metadata is not None
    assert read("\ufeff" + GOOD).warnings
    assert errors("\ufeff" + GOOD, profile="strict")


def test_a_file_above_one_megabyte_is_refused() -> None:
    assert errors(GOOD + "x" * 1024 * 1024) == ["SKILL.md is larger than 1 MB"]


# -------------------------------------------------------------------------------------------------------- lenient
@pytest.mark.parametrize(
    ("text", "folder", "name"),
    [
        ("---\nname: Git Commit\ndescription: d\n---\n", "x", "git-commit"),
        ("---\nname: Größe_2\ndescription: d\n---\n", "x", "grosse-2".replace("ss", "")),
        ("---\nname: 提交\ndescription: d\n---\n", "Commit Tool", "commit-tool"),
        ("---\nname: 提交\ndescription: d\n---\n", "工具", "skill-"),
        ("# Heading\n\nWords.", "My Folder", "my-folder"),
        ("---\nname: 42\ndescription: d\n---\n", "answers", "answers"),
        ("---\nname: two--hyphens-\ndescription: d\n---\n", "x", "two--hyphens-"),
    ],
)
def test_the_lenient_profile_derives_a_valid_name(text: str, folder: str, name: str) -> None:
    metadata = read(text, folder, "lenient").metadata
    assert metadata is not None
    assert metadata.name.startswith(name)


def test_a_file_without_frontmatter_is_described_by_its_title_and_first_paragraph() -> None:
    metadata = read("# Title\n\n> First line\nand more.\n\nNot this.", "x", "lenient").metadata
    assert metadata is not None
    assert metadata.description == "Title. First line and more."


def test_a_file_without_any_description_is_an_error_in_the_lenient_profile() -> None:
    assert errors("---\nname: x\n---\n\n", "x", "lenient")
    assert errors(b"", "x", "lenient")


def test_lenient_repairs_add_warnings() -> None:
    reading = read("---\nname: X Y\ndescription: a: b\nmode: odd\ntimeout: x\n---\nT", "z", "lenient")
    assert reading.metadata is not None
    assert reading.metadata.mode is None
    assert len(reading.warnings) >= 4
    long = read(f"---\nname: x\ndescription: {'d' * 2000}\n---\n", "x", "lenient")
    assert long.metadata is not None
    assert len(long.metadata.description) == 2000
    assert read("---\nname: x\nversion: 1\n---\n# T\n\nWords.", "x", "lenient").warnings


# --------------------------------------------------------------------------------------------------------- strict
@pytest.mark.parametrize(
    "line",
    ["version: 1", "metadata: {a: 1}", "allowed-tools: [Read]", f"compatibility: {'x' * 501}", "license: [MIT]"],
)
def test_the_strict_profile_requires_what_the_open_specification_requires(line: str) -> None:
    assert errors(GOOD.replace("---\n#", f"{line}\n---\n#"), profile="strict")


def test_the_strict_profile_accepts_what_the_open_specification_accepts() -> None:
    extra = "license: MIT\ncompatibility: any\nmetadata: {author: Ada}\nallowed-tools: Read Grep\n---\n#"
    assert errors(GOOD.replace("---\n#", extra), profile="strict") == []


@pytest.mark.parametrize("name", ["git-", "git--commit"])
def test_the_strict_profile_refuses_trailing_and_double_hyphens_in_names(name: str) -> None:
    text = GOOD.replace("git-commit", name)
    assert errors(text, folder=name) == []
    assert errors(text, folder=name, profile="strict")

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.skills.package.repair import diagnose, repair
from apexbridge.skills.package.skill_md import read_skill_markdown
from tests.making import skill_markdown, write_skill


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("---\nname: x\ndescription: a: b\n---\nB\n", '---\nname: x\ndescription: "a: b"\n---\nB\n'),
        ("\ufeff---\nname: x\ndescription: d\n---\nB\n", "---\nname: x\ndescription: d\n---\nB\n"),
        ("---\nname: X\ndescription: d\n---\nB\n", '---\nname: "x"\ndescription: d\n---\nB\n'),
        ("---\nname: x\n---\n# T\n\nWords.\n", '---\ndescription: "T. Words."\nname: x\n---\n# T\n\nWords.\n'),
        ("# T\n\nWords.\n", '---\nname: "x"\ndescription: "T. Words."\n---\n# T\n\nWords.\n'),
        ("---\nname: x\ndescription: d\n\n# T\n", "---\nname: x\ndescription: d\n---\n# T\n"),
        ("name: x\ndescription: d\n\ntext\n", "---\nname: x\ndescription: d\n---\ntext\n"),
        (
            "---\nname: x\ndescription: d\nname: y\nlost: [\n---\nB\n",
            '---\nname: x\ndescription: d\n# name: y\nlost: "["\n---\nB\n',
        ),
        ("---\nname: x\n  description: Does it\n---\nB\n", "---\nname: x\ndescription: Does it\n---\nB\n"),
        (
            "---\nname: x\ndescription: a: b\n# why\n作者: me\n---\nB\n",
            '---\nname: x\ndescription: "a: b"\n# why\n作者: me\n---\nB\n',
        ),
        ('---\n{description: "Useful, really"}\n---\nB\n', '---\n{name: "x", description: "Useful, really"}\n---\nB\n'),
        ("---\nstray\nname: x\ndescription: 'd\n---\nB\n", '---\n# stray\nname: x\ndescription: "\'d"\n---\nB\n'),
        (
            "---\r\nname: x\r\ndescription: a: b\r\n---\r\nB\r\n",
            '---\r\nname: x\r\ndescription: "a: b"\r\n---\r\nB\r\n',
        ),
    ],
)
def test_a_broken_file_is_repaired(broken: str, repaired: str) -> None:
    assert repair(broken.encode(), "x").decode() == repaired
    assert read_skill_markdown(repaired.encode(), folder="x", profile="seed").errors == ()


def test_a_valid_file_is_not_changed() -> None:
    data = skill_markdown("x").encode()
    assert repair(data, "x") == data


def test_an_error_that_cannot_be_repaired_is_reported(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", markdown="---\nname: x\ndescription: d\nmode: odd\n---\n")
    diagnosis = diagnose(folder, write=True)
    assert [(finding.line, finding.severity) for finding in diagnosis.remaining] == [(4, "error")]
    assert not diagnosis.repaired
    huge = write_skill(tmp_path, "huge", markdown="---\nname: huge\nx: " + "y" * 70_000 + "\n---\n")
    assert diagnose(huge).findings


def test_a_repair_preserves_the_file_mode(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", markdown="# T\n\nWords.\n")
    (folder / "SKILL.md").chmod(0o640)
    assert diagnose(folder, write=True).repaired
    assert (folder / "SKILL.md").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.booleans())
def test_a_repair_is_idempotent(text: str, fenced: bool) -> None:
    data = (f"---\nname: x\n{text}\n---\nbody\n" if fenced else text).encode()
    repaired = repair(data, "x")
    assert repair(repaired, "x") == repaired

"""A library of many small skills for the benchmarks."""

from pathlib import Path

SKILLS = 10_000


def markdown(number: int) -> str:
    """A typical SKILL.md: a few fields, a screen of text."""
    return (
        f"---\nname: skill-{number:05}\ndescription: Does the job of number {number}, and says when to use it.\n"
        f"version: 1.0.{number}\ntags: [tag-{number % 50}, tag-{number % 7}]\n---\n# Skill {number}\n\n"
        + "Words. "
        * 60
    )


def write_library(root: Path, count: int = SKILLS) -> None:
    """Write skill folders of three files each."""
    for number in range(count):
        folder = root / f"skill-{number:05}"
        (folder / "scripts").mkdir(parents=True)
        (folder / "SKILL.md").write_text(markdown(number))
        (folder / "scripts/execute.py").write_text("print('{}')\n")
        (folder / "reference.md").write_text("# Reference\n")

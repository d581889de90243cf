"""`apex skills versions`, `rollback` and `export --version`."""

import zipfile
from pathlib import Path

from tests.making import skill_zip
from tests.surfaces.conftest import Apex


def install(apex: Apex, folder: Path, description: str) -> None:
    path = folder / "pdf.zip"
    path.write_bytes(skill_zip("pdf", description=description))
    assert apex("skills", "install", path, "--overwrite").code == 0


def test_versions_are_listed_and_installed_again(apex: Apex, tmp_path: Path) -> None:
    for description in ("one", "two"):
        install(apex, tmp_path, description)
    listed = apex("skills", "versions", "pdf")
    lines = [line.split("\t") for line in listed.out.splitlines()]
    assert [(line[0], line[1], line[3], line[-1]) for line in lines] == [
        ("2", "installed", "install", "two"),
        ("1", "", "install", "one"),
    ]
    rolled = apex("skills", "rollback", "pdf")
    assert (rolled.code, rolled.err) == (0, "Version 1 of pdf is installed. Before, it was version 2.\n")
    assert apex("skills", "show", "pdf", "--json").json["description"] == "one"
    again = apex("skills", "rollback", "pdf", "2", "--json").json
    assert (again["version"], again["previous"]) == (2, 1)
    found = apex("skills", "versions", "pdf", "--json").json
    assert (found["defaultVersion"], found["latestVersion"]) == (2, 2)
    assert [version["default"] for version in found["versions"]] == [True, False]


def test_a_rollback_without_an_earlier_version_says_what_to_do(apex: Apex, tmp_path: Path) -> None:
    install(apex, tmp_path, "one")
    for arguments, problem in ((["pdf"], "no version before 1"), (["pdf", "9"], "no version 9")):
        refused = apex("skills", "rollback", *arguments)
        assert refused.code == 1
        assert problem in refused.err
        assert "apex skills versions" in refused.err
    assert apex("skills", "rollback", "pdf", "0").code == 2
    assert apex("skills", "rollback", "none").code == 1


def test_a_version_is_exported(apex: Apex, tmp_path: Path) -> None:
    for description in ("one", "two"):
        install(apex, tmp_path, description)
    target = tmp_path / "one.zip"
    assert apex("skills", "export", "pdf", "--version", "1", "--out", target).code == 0
    assert b"one" in zipfile.ZipFile(target).read("pdf/SKILL.md")
    assert apex("skills", "export", "pdf", "--version", "7", "--out", tmp_path / "7.zip").code == 1
    assert not (tmp_path / "7.zip").exists()

"""`apex backup` and `apex restore`, with and without a server."""

import os
from pathlib import Path

import pytest

from tests.making import write_skill
from tests.mounting import mounted_disk
from tests.surfaces.conftest import Apex, StartServer
from tests.surfaces.conftest import apex as apex
from tests.surfaces.conftest import start_server as start_server


@pytest.fixture
def installed(apex: Apex, tmp_path: Path) -> Path:
    assert apex("skills", "install", write_skill(tmp_path, "notes")).code == 0
    return tmp_path


def test_a_backup_is_written_checked_and_restored(apex: Apex, installed: Path) -> None:
    file, copy = installed / "x.backup", installed / "copy"
    made = apex("backup", file, "--json")
    assert (made.code, made.json["skills"], made.json["file"]) == (0, 1, str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    checked = apex("restore", file, "--check", "--json")
    assert {**made.json, **checked.json} == made.json
    shown = apex("restore", file, "--check")
    assert "Every entry is complete" in shown.err
    assert "skills\t" in shown.out
    assert not copy.exists()
    restored = apex("restore", file, "--data-dir", copy, "--json")
    assert (restored.json["dataDir"], restored.json["movedTo"]) == (str(copy), None)
    assert apex("skills", "list", "--data-dir", copy, "--json").json["skills"][0]["name"] == "notes"
    verdict = apex("audit", "verify", "--data-dir", copy)
    assert "The audit log is intact" in verdict.err
    assert "was restored from a backup" in verdict.err


def test_an_existing_file_is_replaced_with_force_only(apex: Apex, installed: Path) -> None:
    file = installed / "x.backup"
    file.write_text("mine")
    refused = apex("backup", file, "--json")
    assert (refused.code, refused.json["code"]) == (1, "FILE_EXISTS")
    assert file.read_text() == "mine"
    assert apex("backup", file, "--force").code == 0
    assert apex("restore", file, "--check").code == 0
    assert [path.name for path in installed.glob("*backup*")] == ["x.backup"]


def test_a_file_that_a_killed_backup_left_is_removed(apex: Apex, installed: Path) -> None:
    (installed / ".x.backup.0123.partial").write_text("half")
    (installed / ".y.backup.0123.partial").write_text("of another backup")
    assert apex("backup", installed / "x.backup").code == 0
    assert [path.name for path in installed.glob(".*.partial")] == [".y.backup.0123.partial"]


def test_a_missing_data_directory_or_folder_is_named(apex: Apex, tmp_path: Path) -> None:
    assert apex("backup", tmp_path / "x", "--json").json["code"] == "DATA_DIR_NOT_FOUND"
    assert apex("backup", tmp_path / "no/x", "--json").json["code"] == "INVALID_INPUT"
    assert apex("restore", tmp_path / "x", "--json").json["code"] == "INVALID_INPUT"
    assert apex("restore", tmp_path, "--check", "--json").json["code"] == "INVALID_INPUT"
    assert list(tmp_path.glob("*x*")) == []


def test_a_full_disk_leaves_nothing_of_a_backup(apex: Apex, installed: Path) -> None:
    (installed / "big").mkdir()
    write_skill(installed, "big")
    (installed / "big/data.bin").write_bytes(os.urandom(3_000_000))
    assert apex("skills", "install", installed / "big").code == 0
    with mounted_disk(installed / "disk", megabytes=1) as disk:
        refused = apex("backup", disk / "x.backup", "--json")
        assert (refused.code, refused.json["code"]) == (1, "STORAGE_FULL")
        assert list(disk.iterdir()) == []


def test_with_a_server_the_command_writes_what_the_server_sends(
    apex: Apex, installed: Path, start_server: StartServer
) -> None:
    server = start_server()
    assert apex("backup", installed / "x.backup").code == 0
    assert apex("backup", installed / "y.backup", "--url", server.url).code == 0
    for name in ("x.backup", "y.backup"):
        assert apex("restore", installed / name, "--check", "--json").json["skills"] == 1
    refused = apex("restore", installed / "x.backup", "--force", "--json")
    assert refused.json["code"] == "DATA_DIR_IN_USE"
    assert server.stop() == 0
    assert apex("restore", installed / "x.backup", "--force", "--json").json["movedTo"]

"""The text of a source: what it means, and what is refused."""

import pytest

from apexbridge.errors import InvalidInputError
from apexbridge.skills.remote.source_text import parse_source


@pytest.mark.parametrize(
    ("text", "url", "ref", "path"),
    [
        ("owner/repo", "https://github.com/owner/repo.git", None, ""),
        ("owner/repo/skills/pdf", "https://github.com/owner/repo.git", None, "skills/pdf"),
        ("owner/repo@v1.2", "https://github.com/owner/repo.git", "v1.2", ""),
        ("owner/repo/skills/pdf/@feature/new", "https://github.com/owner/repo.git", "feature/new", "skills/pdf"),
        ("https://example.org/a/b.git", "https://example.org/a/b.git", None, ""),
        ("https://example.org/a/b.git@main#skills/pdf", "https://example.org/a/b.git", "main", "skills/pdf"),
        ("https://example.org:8443/a/b/", "https://example.org:8443/a/b", None, ""),
        ("git+https://example.org/a/b.zip", "https://example.org/a/b.zip", None, ""),
        ("https://github.com/o/r/tree/main/skills/pdf", "https://github.com/o/r", "main", "skills/pdf"),
        ("https://github.com/o/r/blob/main/pdf/SKILL.md", "https://github.com/o/r", "main", "pdf/SKILL.md"),
        ("https://github.com/o/r/tree/main", "https://github.com/o/r", "main", ""),
        ("ssh://git@example.org:2222/a/b.git@v1", "ssh://git@example.org:2222/a/b.git", "v1", ""),
        ("git@example.org:a/b.git", "git@example.org:a/b.git", None, ""),
        ("git@example.org:a/b.git@v1#skills/pdf", "git@example.org:a/b.git", "v1", "skills/pdf"),
        ("file:///srv/a.git@v1#pdf", "file:///srv/a.git", "v1", "pdf"),
    ],
)
def test_a_git_source_has_a_url_a_ref_and_a_path(text: str, url: str, ref: str | None, path: str) -> None:
    source = parse_source(text)
    assert source is not None
    assert (source.kind, source.url, source.ref, source.path) == ("git", url, ref, path)


def test_the_url_of_a_zip_is_an_archive() -> None:
    source = parse_source("https://example.org/dl/pdf.zip?version=3")
    assert source is not None
    assert (source.kind, source.url, source.name) == ("archive", "https://example.org/dl/pdf.zip?version=3", "pdf.zip")


@pytest.mark.parametrize(
    "text", ["folder", "./owner/repo", "/abs/path", "../up", "a/b.zip", "a/b/SKILL.md", "~/x/y", ""]
)
def test_other_text_is_a_path(text: str) -> None:
    assert parse_source(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "--upload-pack=touch /tmp/x",
        "-o/repo",
        "owner/repo@--upload-pack=x",
        "owner/repo@-x",
        "owner/repo@a..b",
        "owner/repo@a b",
        "owner/repo/../other",
        "owner/repo/-x",
        "ext::sh -c touch% /tmp/x",
        "https://user:secret@example.org/a/b.git",
        "https://token@example.org/a/b.git",
        "ftp://user:secret@example.org/a/b.git",
        "https://user:sec@ret@example.org/a b.git",
        "ssh://-oProxyCommand=x/a/b.git",
        "ssh://-oProxyCommand=x@example.org/a/b.git",
        "git://example.org/a/b.git",
        "ftp://example.org/a.zip",
        "https://",
        "https:///a/b.git",
        "https://example.org/a b.git",
        "https://example.org/a/b.git#../x",
        "https://example.org/a/b.zip#x",
        "https://example.org/a/b?x=1",
        "https://example.org:99999/a/b.git",
        "https://[::1/a.git",
        "file://host/srv/a.git",
        "https://example.org/x\n.git",
        "owner/repo/a\0b",
        "owner/repo/a\x1b[31mb",
        "owner/repo/\udc80",
        "o/r" * 2000,
    ],
)
def test_dangerous_or_unclear_sources_are_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_source(text)
    assert "secret" not in caught.value.message
    assert "sec@ret" not in caught.value.message


def test_a_source_names_other_folders_of_its_repository() -> None:
    short, long = parse_source("owner/repo@v1"), parse_source("https://example.org/a.git@v1")
    assert short is not None
    assert long is not None
    assert short.at("skills/pdf") == "owner/repo/skills/pdf@v1"
    assert long.at("skills/pdf") == "https://example.org/a.git@v1#skills/pdf"

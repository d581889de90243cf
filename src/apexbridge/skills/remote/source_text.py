"""Reads the text of a source that is fetched.

It is `owner/repo[/path][@ref]`, a Git URL, the HTTPS URL of a ZIP, or the address of a server that publishes skills.
"""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from apexbridge.errors import InvalidInputError

MAX_SOURCE_CHARACTERS = 2048
MAX_NAME_CHARACTERS = 100
GITHUB = "https://github.com"
INDEX_PATH = "/.well-known/agent-skills/index.json"
"""Where a server publishes its skills."""
PUBLIC_NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*\Z")
"""Names that the Agent Skills specification allows."""
_FORGES = frozenset({"github.com", "gitlab.com", "bitbucket.org", "codeberg.org"})
"""Hosts of repositories, which are not asked for an index."""
_ARCHIVE_SUFFIXES = (".zip", ".skill")
_FILE_SUFFIXES = (*_ARCHIVE_SUFFIXES, ".md")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHORTHAND = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]{0,38})/([A-Za-z0-9._-]{1,100})(/[^@#]*)?(?:@(.+))?\Z")
_SCP = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)@([A-Za-z0-9][A-Za-z0-9.-]*):(?!/)([^@#]+)(?:@([^#]+))?(?:#(.+))?\Z")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z|\[[0-9A-Fa-f:.]+\]\Z")
_BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\A[-/.]|[/.]\Z|\.lock\Z")
SOURCE_USAGE = (
    "Name a folder, a .zip, a .skill, a SKILL.md, owner/repo[/path][@ref], a Git URL[@ref][#path], the HTTPS URL "
    "of a .zip, or that of a server that publishes skills"
)
Scheme = Literal["https", "http", "ssh", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSource:
    """A repository, an archive, or the index of a server that publishes skills."""

    text: str
    """As it was asked for."""
    kind: Literal["git", "archive", "index"]
    scheme: Scheme
    url: str
    host: str
    """Without brackets; empty for `file`."""
    port: int | None = None
    ref: str | None = None
    """A branch, a tag or a full commit id; None is the default branch."""
    path: str = ""
    """The folder in the repository; empty for all of it."""
    skill: str = ""
    """The chosen skill of an index; empty for all of them."""

    @property
    def is_local(self) -> bool:
        """Whether it reads the disk of the machine that fetches it."""
        return self.scheme == "file"

    @property
    def is_short(self) -> bool:
        """Whether it is written as `owner/repo`, as a path could be."""
        return self.kind == "git" and self.scheme == "https" and "://" not in self.text

    @property
    def github_repository(self) -> str | None:
        """`owner/repo` if it is on GitHub."""
        if self.kind != "git" or not self.url.lower().startswith(f"{GITHUB}/"):
            return None
        return self.url[len(GITHUB) + 1 :].removesuffix(".git")

    @property
    def index_url(self) -> str | None:
        """The address of the index that it is, or that may be there. Repositories are often without `.git`."""
        if self.kind == "index":
            return self.url
        is_open = self.scheme in ("https", "http") and not (self.ref or self.path or self.is_short)
        if self.kind != "git" or not is_open or self.host in _FORGES or self.text.startswith("git+"):
            return None
        return None if self.url.endswith(".git") else f"{self.url}{INDEX_PATH}"

    def of_skill(self, index_url: str, skill: str) -> "RemoteSource":
        """One skill of the index that was found at `index_url`."""
        return replace(self, kind="index", url=index_url, skill=skill, text=f"{index_url}#{skill}")

    @property
    def name(self) -> str:
        """The name of the folder or file that it leads to."""
        path = self.path or re.split(r"[/:]", self.url.partition("?")[0].rstrip("/"))[-1]
        return PurePosixPath(path).name.removesuffix(".git")[-MAX_NAME_CHARACTERS:] or "source"

    def at(self, path: str) -> str:
        """The text of another folder of the same repository."""
        ref = f"@{self.ref}" if self.ref else ""
        repository = self.github_repository
        return f"{repository}/{path}{ref}" if repository else f"{self.url}{ref}#{path}"


def parse_source(text: str) -> RemoteSource | None:
    """The source that a text describes; None if it can only be a path of this machine.

    Raises:
        InvalidInputError: it is neither.
    """
    if len(text) > MAX_SOURCE_CHARACTERS:
        raise InvalidInputError(f"The source is longer than {MAX_SOURCE_CHARACTERS} characters")
    if text.startswith("-"):
        raise _refused(text, "it begins with -")
    if not text.isprintable():
        raise _refused(text, "it contains a control character")
    bare = text.removeprefix("git+")
    if scheme := _SCHEME.match(bare):
        return _from_url(text, bare, scheme[1].lower(), is_git=bare != text)
    if "::" in text:
        raise _refused(text, "transports other than https and ssh are not used")
    if matched := _SCP.match(bare):
        user, host, repository, ref, path = matched.groups()
        return _git(text, "ssh", f"{user}@{host}:{repository}", host, ref=ref, path=path or "")
    matched = _SHORTHAND.match(text)
    if matched is None or matched[2] in (".", "..") or (matched[4] is None and text.lower().endswith(_FILE_SUFFIXES)):
        return None
    owner, repository, path, ref = matched.groups()
    url = f"{GITHUB}/{owner}/{repository.removesuffix('.git')}.git"
    return _git(text, "https", url, "github.com", ref=ref, path=path or "")


def _from_url(text: str, url: str, scheme: str, *, is_git: bool) -> RemoteSource:
    if scheme not in ("https", "http", "ssh", "file"):
        raise _refused(text, f"{scheme}:// is not used; use https:// or ssh://")
    if re.search(r"[\x00-\x20\x7f\\]", url):
        raise _refused(text, "it contains a space or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused(text, str(error)) from error
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise _refused(text, "write file:///PATH")
    elif not _HOST.match(parts.netloc.rpartition("@")[2].removesuffix(f":{port}")):
        raise _refused(text, "it has no valid host")
    if parts.password is not None or (parts.username and scheme != "ssh"):
        raise _refused(text, "it contains credentials, which would be stored and shown; use an SSH address instead")
    if parts.username and not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", parts.username):
        raise _refused(text, "it has no valid user")
    host = (parts.hostname or "").lower()
    if scheme in ("https", "http") and not is_git and (parts.path in ("", "/") or parts.path.endswith(INDEX_PATH)):
        return _index(text, parts, host, port)
    if scheme in ("https", "http") and not is_git and parts.path.lower().endswith(_ARCHIVE_SUFFIXES):
        if parts.fragment:
            raise _refused(text, "an archive has no #path")
        clean = parts._replace(fragment="").geturl()
        return RemoteSource(text=text, kind="archive", scheme=_scheme(scheme), url=clean, host=host, port=port)
    if parts.query:
        raise _refused(text, "a Git URL has no ?query; the URL of an archive ends in .zip or .skill")
    address, ref, path = _split_address(parts)
    clean = parts._replace(path=address, fragment="", query="").geturl()
    return _git(text, _scheme(scheme), clean, host, port=port, ref=ref, path=path)


def _index(text: str, parts: SplitResult, host: str, port: int | None) -> RemoteSource:
    if parts.query:
        raise _refused(text, "the address of a server that publishes skills has no ?query")
    if parts.fragment and not PUBLIC_NAME.match(parts.fragment):
        raise _refused(text, f"{parts.fragment!r} cannot be the name of a skill")
    url = parts._replace(path=parts.path.rstrip("/") or INDEX_PATH, fragment="").geturl()
    return RemoteSource(
        text=text, kind="index", scheme=_scheme(parts.scheme), url=url, host=host, port=port, skill=parts.fragment
    )


def _split_address(parts: SplitResult) -> tuple[str, str | None, str]:
    """The repository's path, the ref and the folder: of `PATH@ref#folder`, or of a page on GitHub.

    The page is that of a folder, or of its SKILL.md.
    """
    address, _, ref = parts.path.partition("@")
    page = re.fullmatch(r"(/[^/]+/[^/]+)/(?:tree|blob)/([^/]+)(?:/(.*))?", address.rstrip("/"))
    if parts.hostname == "github.com" and page and not ref and not parts.fragment:
        return page[1], page[2], page[3] or ""
    return address.rstrip("/"), ref or None, parts.fragment


def _git(
    text: str, scheme: Scheme, url: str, host: str, *, port: int | None = None, ref: str | None, path: str
) -> RemoteSource:
    if ref is not None and (_BAD_REF.search(ref) or len(ref) > MAX_SOURCE_CHARACTERS):
        raise _refused(text, f"{ref!r} cannot be the name of a branch, a tag or a commit")
    folders = path.strip("/").split("/") if path.strip("/") else []
    if any(folder in ("", ".", "..") or folder.startswith(("-", ":")) for folder in folders):
        raise _refused(text, f"{path!r} is not a folder in a repository")
    if url.rpartition("/")[2].startswith("-") or not url.rstrip("/").rpartition("/")[2]:
        raise _refused(text, "it names no repository")
    return RemoteSource(
        text=text, kind="git", scheme=scheme, url=url, host=host, port=port, ref=ref, path="/".join(folders)
    )


def _scheme(scheme: str) -> Scheme:
    return scheme  # type: ignore[return-value]  # checked by the caller


def _refused(text: str, reason: str) -> InvalidInputError:
    shown = re.sub(r"//[^/]*@", "//…@", text)[:200]  # without a password
    return InvalidInputError(f"{shown!a} cannot be installed: {reason}. {SOURCE_USAGE}.")

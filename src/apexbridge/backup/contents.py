"""What a backup contains: the entries of a data directory that cannot be made again."""

import re
from datetime import datetime

from pydantic import Field

from apexbridge.skills.lock_file import LOCK_FILE
from apexbridge.skills.store.signers import SIGNERS_FILE
from apexbridge.storage.audit import AUDIT_FILE
from apexbridge.storage.directory import DATABASE_FILE
from apexbridge.wire import WireModel

FORMAT = 1
"""Of the archive. A release reads its own and all older ones."""
HEADER_FILE, MANIFEST_FILE = "backup.json", "manifest.jsonl"
"""The first and the last entry."""
PAST_REQUESTS_FILE = "past-requests.jsonl"
SECRETS_FILE = "secrets.json"
WORKSPACES = "workspaces"
FOLDERS = ("skills", "versions", "plugins", "trash", "runs", "uploads", "workspace", WORKSPACES, "answered")
CHANGED_TOGETHER = (LOCK_FILE, SIGNERS_FILE, "hidden.json", "models.json")
"""Small files that are replaced as a whole."""
FILES = (DATABASE_FILE, AUDIT_FILE, PAST_REQUESTS_FILE, SECRETS_FILE, *CHANGED_TOGETHER)
EARLIER_LOG = re.compile(r"audit(\.\d+)?\.jsonl\Z")


class BackupHeader(WireModel):
    """What a backup says of itself."""

    format: int = Field(ge=1)
    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    version: str = Field(max_length=64)
    """Of apexbridge."""
    schema_version: int = Field(ge=0)
    """Of the data directory: the number of the last migration of its database."""
    created_at: datetime
    skills: int = Field(ge=0)
    bytes: int = Field(ge=0)
    """Of all files together, approximately."""
    has_secrets: bool
    embedder: str | None = Field(default=None, max_length=1000)
    """The models with which skills were searched."""
    left_out: tuple[str, ...] = ()
    """What could not be read, or is neither a file nor a folder."""


def is_file_entry(name: str) -> bool:
    """Whether a backup may have a file of this name at its top."""
    return name in FILES or EARLIER_LOG.match(name) is not None

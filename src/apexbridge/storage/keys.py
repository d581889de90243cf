"""API keys: made here, shown once, and known again by the digest of their secret."""

import hashlib
import hmac
import logging
import re
import secrets
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from apexbridge._time import now_ms
from apexbridge.disk import Ballast
from apexbridge.errors import InvalidInputError, RequestError, ServerError
from apexbridge.storage.database import Database
from apexbridge.storage.faults import storage_faults
from apexbridge.storage.write_behind import WriteBehind

KeyScope = Literal["chat", "read", "run", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
PREFIX = "apex_"
SECRET_BYTES = 32
MAX_NAME_CHARACTERS = 100
FLUSH_SECONDS = 10.0
"""How long it may take until the time of a key's last use is written down."""
_FORM = re.compile(r"apex_([0-9a-f]{8})_([\w-]{43})\Z", re.ASCII)
_COLUMNS = "id, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at"
_NOBODY = bytes(32)
"""Compared with where no key of that id is known, so that an unknown id takes as long as a wrong secret."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """All that is known of a key; times in milliseconds since 1970."""

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[KeyScope]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None

    def problem(self, now: int) -> str | None:
        """Why it no longer counts."""
        if self.revoked_at is not None:
            return "was revoked"
        return "has expired" if self.expires_at is not None and self.expires_at <= now else None

    def allows(self, scope: KeyScope) -> bool:
        """Whether it may do that; who administers may do everything, being able to make any key."""
        return scope in self.scopes or "admin" in self.scopes


class KeyStore:
    """Keeps keys in the database, and all of them in memory: a request waits for no disk."""

    def __init__(self, database: Database, *, ballast: Ballast | None = None) -> None:
        self._database = database
        self._ballast = ballast
        self._unsaved: dict[str, int] = {}
        """Keys that were revoked while the database could not be written, and when."""
        self._keys: dict[str, ApiKey] = {}
        self._used: dict[str, int] = {}
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    async def load(self) -> None:
        """Read every key."""
        query = f"SELECT {_COLUMNS} FROM api_keys"  # noqa: S608
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        self._keys = {row[0]: _key(row) for row in rows}

    def list(self) -> list[ApiKey]:
        """Every key there ever was, the oldest first."""
        known = [replace(key, last_used_at=self._used.get(key.id, key.last_used_at)) for key in self._keys.values()]
        return sorted(known, key=lambda key: (key.created_at, key.id))

    @property
    def has_usable(self) -> bool:
        """Whether anybody could come in with a key now."""
        now = now_ms()
        return any(key.problem(now) is None for key in self._keys.values())

    def find(self, text: str) -> ApiKey | None:
        """The key that this is, expired and revoked ones included; None where it is none of ours."""
        form = _FORM.match(text)
        if form is None:
            return None
        key = self._keys.get(form[1])
        digest = hashlib.sha256(form[2].encode()).digest()
        is_right = hmac.compare_digest(digest, key.digest if key else _NOBODY)
        return key if is_right else None

    def name_of(self, identity: str) -> str | None:
        """What a key is called; None where there never was one of that id."""
        key = self._keys.get(identity)
        return key.name if key else None

    def reach(self, caller: str) -> str | None:
        """Whose runs and uploads a caller gets to see: its own, or those of all (None).

        All are for who administers, and for whoever comes in without a key: the owner of the data directory, and
        everybody where no key is asked for.
        """
        if not caller:
            return None
        key = self._keys.get(caller)
        is_admin = key is not None and key.allows("admin") and key.problem(now_ms()) is None
        return None if is_admin else caller

    def check(self, caller: str) -> None:
        """Refuse a caller whose key no longer counts; for requests that take long.

        Raises:
            RequestError: UNAUTHORIZED.
        """
        key = self._keys.get(caller)
        problem = key.problem(now_ms()) if key else None
        if problem is not None:
            raise RequestError(f"The API key {caller} {problem}.", code="UNAUTHORIZED")

    def note_use(self, key: ApiKey, now: int) -> None:
        """Remember that a key was used; it is written down later, not while somebody waits."""
        self._used[key.id] = now
        self._behind.schedule()

    async def create(self, name: str, scopes: Collection[str], *, expires_at: int | None = None) -> tuple[ApiKey, str]:
        """Make a key; gives its text too, which nobody can tell again.

        Raises:
            InvalidInputError: the name or a scope does not fit.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidInputError(f"A key needs a name of 1 to {MAX_NAME_CHARACTERS} printable characters")
        if not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInputError(f"The scopes of a key are one or more of {', '.join(SCOPES)}")
        identity = secrets.token_hex(4)
        while identity in self._keys:
            identity = secrets.token_hex(4)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        key = ApiKey(
            id=identity,
            name=name,
            digest=hashlib.sha256(secret.encode()).digest(),
            scopes=cast(frozenset[KeyScope], frozenset(scopes)),
            created_at=now_ms(),
            expires_at=expires_at,
        )
        values = (key.id, key.name, key.digest, ",".join(sorted(key.scopes)), key.created_at, key.expires_at)
        insert = f"INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)"  # noqa: S608
        with storage_faults():
            await self._database.write(lambda connection: connection.execute(insert, values))
        self._keys[key.id] = key
        return key, f"{PREFIX}{identity}_{secret}"

    async def revoke(self, identity: str) -> ApiKey:
        """Take a key back, for good and at once; the record of it stays.

        It no longer counts from this moment on, even if the disk does not take the change. That is tried again then.

        Raises:
            RequestError: NOT_FOUND.
            ServerError: STORAGE_FULL, if the key is revoked in memory only.
        """
        key = self._keys.get(identity)
        if key is None:
            raise RequestError(f"There is no API key {identity[:64]}. See: apex keys list", code="NOT_FOUND")
        if key.revoked_at is None:
            now = now_ms()
            self._keys[identity] = key = replace(key, revoked_at=now)
            self._unsaved[identity] = now
        if identity in self._unsaved:
            try:
                await self._save_revocations()
            except (OSError, sqlite3.Error) as error:
                self._behind.schedule()
                raise ServerError(
                    f"The API key {identity} is revoked, but the disk does not take it: it counts again should the "
                    "server end before it could be written down, which is tried every few seconds. Free some space.",
                    code="STORAGE_FULL",
                ) from error
        return key

    async def _save_revocations(self) -> None:
        update = "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        rows = [(moment, identity) for identity, moment in self._unsaved.items()]

        async def save() -> None:
            await self._database.write(lambda connection: connection.executemany(update, rows))

        await (self._ballast.give_way(save) if self._ballast is not None else save())
        for _, identity in rows:
            self._unsaved.pop(identity, None)

    async def close(self) -> None:
        """Write down what is not written yet."""
        await self._behind.close()

    async def _flush(self) -> bool:
        if self._unsaved:
            try:
                await self._save_revocations()
            except (OSError, sqlite3.Error):
                logger.warning("%s revoked keys are not written down yet", len(self._unsaved), exc_info=True)
        used, self._used = self._used, {}
        if not used:
            return bool(self._unsaved)
        for identity, moment in used.items():
            self._keys[identity] = replace(self._keys[identity], last_used_at=moment)
        update = "UPDATE api_keys SET last_used_at = ? WHERE id = ?"
        rows = [(moment, identity) for identity, moment in used.items()]
        try:
            await self._database.write(lambda connection: connection.executemany(update, rows))
        except sqlite3.Error:  # memory knows it; a time is not worth a failure
            logger.warning("the last use of %s keys could not be written down", len(rows), exc_info=True)
        return bool(self._used or self._unsaved)


def _key(row: tuple[str, str, bytes, str, int, int | None, int | None, int | None]) -> ApiKey:
    identity, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at = row
    return ApiKey(
        id=identity,
        name=name,
        digest=digest,
        scopes=cast(frozenset[KeyScope], frozenset(scopes.split(","))),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )

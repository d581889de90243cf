"""API keys. Only the digest of a key's secret is stored."""

import hashlib
import hmac
import logging
import re
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict, cast, get_args

from apexbridge._time import now_ms
from apexbridge.disk import Ballast
from apexbridge.errors import InvalidInputError, RequestError, ServerError
from apexbridge.storage.database import Database, WriteBehind
from apexbridge.storage.directory import storage_faults

KeyScope = Literal["chat", "read", "run", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
PREFIX = "apex_"
SECRET_BYTES = 32
MAX_NAME_CHARACTERS = 100
FLUSH_SECONDS = 10.0
"""How long until the time of a key's last use is written."""
_FORM = re.compile(r"apex_([0-9a-f]{8})_([\w-]{43})\Z", re.ASCII)
_COLUMNS = "id, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at, quota_mb, max_runs, rate_limit"
_NO_DIGEST = bytes(32)
"""Compared if the id is unknown, so that this takes as long as a wrong secret."""
logger = logging.getLogger(__name__)


class KeyLimits(TypedDict, total=False):
    """Limits of one key; None for those of all keys."""

    quota_mb: int | None
    """0 for any size."""
    max_runs: int | None
    rate_limit: int | None
    """0 for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key; times in milliseconds since 1970."""

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[KeyScope]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    quota_mb: int | None = None
    max_runs: int | None = None
    rate_limit: int | None = None

    def problem(self, now: int) -> str | None:
        """Why the key is not valid, or None."""
        if self.revoked_at is not None:
            return "was revoked"
        return "has expired" if self.expires_at is not None and self.expires_at <= now else None

    def allows(self, scope: KeyScope) -> bool:
        """Whether the key has the scope. An admin key has all: it can create any key."""
        return scope in self.scopes or "admin" in self.scopes


class KeyStore:
    """Keys in the database, and all of them in memory, so that requests do not wait for the disk."""

    def __init__(
        self, database: Database, *, ballast: Ballast | None = None, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called after a key was created, changed or revoked."""
        self._database = database
        self._changed = changed
        self._ballast = ballast
        self._unsaved: dict[str, int] = {}
        """Keys that were revoked while the database could not be written, with the time."""
        self._keys: dict[str, ApiKey] = {}
        self._used: dict[str, int] = {}
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    async def load(self) -> None:
        rows = await self._database.rows(f"SELECT {_COLUMNS} FROM api_keys")  # noqa: S608
        self._keys = {row[0]: _key(row) for row in rows}

    def list(self) -> list[ApiKey]:
        """All keys, also expired and revoked ones, the oldest first."""
        known = [replace(key, last_used_at=self._used.get(key.id, key.last_used_at)) for key in self._keys.values()]
        return sorted(known, key=lambda key: (key.created_at, key.id))

    @property
    def has_usable(self) -> bool:
        now = now_ms()
        return any(key.problem(now) is None for key in self._keys.values())

    def find(self, text: str) -> ApiKey | None:
        """The key with this text, also if expired or revoked; None if it is unknown."""
        form = _FORM.match(text)
        if form is None:
            return None
        key = self._keys.get(form[1])
        is_right = hmac.compare_digest(_digest(form[2]), key.digest if key else _NO_DIGEST)
        return key if is_right else None

    def get(self, identity: str) -> ApiKey | None:
        """The key with this id, also if expired or revoked."""
        return self._keys.get(identity)

    def name_of(self, identity: str) -> str | None:
        """The name of a key; None if there never was one with this id."""
        key = self._keys.get(identity)
        return key.name if key else None

    def allows(self, caller: str, scope: KeyScope) -> bool:
        """Whether a caller has a scope. Callers without a key have all."""
        key = self._keys.get(caller)
        return not caller or (key is not None and key.allows(scope))

    def reach(self, caller: str) -> str | None:
        """The caller whose runs and uploads this caller may see; None for those of all.

        Admin keys see all. So do callers without a key: the owner of the data directory, and everyone if the server
        requires no key.
        """
        if not caller:
            return None
        key = self._keys.get(caller)
        is_admin = key is not None and key.allows("admin") and key.problem(now_ms()) is None
        return None if is_admin else caller

    def check(self, caller: str) -> None:
        """Check again that a caller's key is valid; for long requests. Raises RequestError (UNAUTHORIZED)."""
        key = self._keys.get(caller)
        if key is not None and (problem := key.problem(now_ms())):
            raise RequestError(f"The API key {caller} {problem}.", code="UNAUTHORIZED")

    def note_use(self, key: ApiKey, now: int) -> None:
        """Record the use of a key; it is written later."""
        self._used[key.id] = now
        self._behind.schedule()

    def limits_of(self, caller: str) -> KeyLimits:
        """The limits of a caller's key that differ from those of all keys."""
        key = self._keys.get(caller)
        return KeyLimits(quota_mb=key.quota_mb, max_runs=key.max_runs, rate_limit=key.rate_limit) if key else {}

    async def create(
        self, name: str, scopes: Collection[str], *, expires_at: int | None = None, limits: KeyLimits | None = None
    ) -> tuple[ApiKey, str]:
        """Create a key; returns it with its text, which is not stored.

        Raises InvalidInputError if the name or a scope is not valid.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidInputError(f"A key needs a name of 1 to {MAX_NAME_CHARACTERS} printable characters")
        if not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInputError(f"The scopes of a key are one or more of {', '.join(SCOPES)}")
        while (identity := secrets.token_hex(4)) in self._keys:
            pass
        secret = secrets.token_urlsafe(SECRET_BYTES)
        key = ApiKey(
            id=identity,
            name=name,
            digest=_digest(secret),
            scopes=cast(frozenset[KeyScope], frozenset(scopes)),
            created_at=now_ms(),
            expires_at=expires_at,
            **(limits or {}),
        )
        values = (key.id, key.name, key.digest, ",".join(sorted(key.scopes)), key.created_at, key.expires_at)
        own = (key.quota_mb, key.max_runs, key.rate_limit)
        insert = f"INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, ?, ?, ?)"  # noqa: S608
        with storage_faults():
            await self._database.execute(insert, *values, *own)
        self._keys[key.id] = key
        self._changed()
        return key, f"{PREFIX}{identity}_{secret}"

    async def change(self, identity: str, limits: KeyLimits) -> ApiKey:
        """Change the limits of a key; those that are missing stay. Raises RequestError: NOT_FOUND."""
        changed = replace(self.known(identity), **limits)
        update = "UPDATE api_keys SET quota_mb = ?, max_runs = ?, rate_limit = ? WHERE id = ?"
        with storage_faults():
            await self._database.execute(update, changed.quota_mb, changed.max_runs, changed.rate_limit, identity)
        self._keys[identity] = replace(self.known(identity), **limits)  # it may have been revoked in the meantime
        self._changed()
        return self._keys[identity]

    def known(self, identity: str) -> ApiKey:
        """The key with this id, also if expired or revoked. Raises RequestError: NOT_FOUND."""
        key = self._keys.get(identity)
        if key is None:
            raise RequestError(f"No API key {identity[:64]}. See: apex keys list", code="NOT_FOUND")
        return replace(key, last_used_at=self._used.get(identity, key.last_used_at))

    async def revoke(self, identity: str) -> ApiKey:
        """Revoke a key permanently; its record stays.

        It is invalid from now on, even if the disk cannot be written. Writing is retried then.

        Raises:
            RequestError: NOT_FOUND.
            ServerError: STORAGE_FULL, if the key is revoked in memory only.
        """
        key = self.known(identity)
        if key.revoked_at is None:
            now = now_ms()
            self._keys[identity] = key = replace(key, revoked_at=now)
            self._unsaved[identity] = now
            self._changed()
        if identity in self._unsaved:
            try:
                await self._save_revocations()
            except (OSError, sqlite3.Error) as error:
                self._behind.schedule()
                raise ServerError(
                    f"The API key {identity} is revoked, but the disk cannot be written. The server retries every few "
                    "seconds; if it stops before that succeeds, the key is valid again. Free some space.",
                    code="STORAGE_FULL",
                ) from error
        return key

    async def _save_revocations(self) -> None:
        revoked = dict(self._unsaved)
        update = "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        save = partial(self._save_times, update, revoked)
        await (self._ballast.give_way(save) if self._ballast is not None else save())
        for identity in revoked:
            self._unsaved.pop(identity, None)

    async def _save_times(self, update: str, times: Mapping[str, int]) -> None:
        rows = [(time_ms, identity) for identity, time_ms in times.items()]
        await self._database.write(lambda connection: connection.executemany(update, rows))

    async def close(self) -> None:
        await self._behind.close()

    async def _flush(self) -> bool:
        if self._unsaved:
            try:
                await self._save_revocations()
            except (OSError, sqlite3.Error):
                logger.warning("%s revoked keys are not on disk yet", len(self._unsaved), exc_info=True)
        used, self._used = self._used, {}
        if not used:
            return bool(self._unsaved)
        for identity, time_ms in used.items():
            self._keys[identity] = replace(self._keys[identity], last_used_at=time_ms)
        try:
            await self._save_times("UPDATE api_keys SET last_used_at = ? WHERE id = ?", used)
        except sqlite3.Error:  # memory has it, and a timestamp must not make requests fail
            logger.warning("the last use of %s keys could not be written", len(used), exc_info=True)
        return bool(self._used or self._unsaved)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key(row: Sequence[Any]) -> ApiKey:
    known = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return ApiKey(**{**known, "scopes": frozenset(known["scopes"].split(","))})

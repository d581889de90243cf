"""Records of chat requests: written in the background, listed, and deleted after the retention time."""

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from apexbridge._tasks import run_to_completion
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.agent.records.chat_views import (
    ChatDetail,
    ChatPage,
    ChatStatistics,
    ModelTotals,
    detail,
    summary,
    totals,
)
from apexbridge.agent.usage_feedback import last_question
from apexbridge.errors import RequestError
from apexbridge.storage.chat_store import ChatFilter, ChatRow, ChatStore
from apexbridge.storage.database import WriteBehind
from apexbridge.storage.directory import storage_faults

FLUSH_SECONDS = 1.0
MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Limits of what waits for a slow disk, half of which are for one caller. Further records are dropped and counted."""
SHARE = 2
BATCH = 500
SWEEP_SECONDS = 3600
MAX_RECENT = 100
DEFAULT_DAYS = 30
DEFAULT_LIMIT = 50
logger = logging.getLogger(__name__)


class PastUse(Protocol):
    """Usage that chats recorded for the search."""

    async def forget_chat(self, chat: str) -> int:
        """Delete the usage recorded by the chat with this link."""

    async def forget_expired(self) -> int:
        """Delete usage older than the retention time."""


class ChatRecords:
    """Stores and lists records. Deleting a record also deletes the usage that its chat recorded for the search."""

    def __init__(
        self,
        store: ChatStore,
        *,
        has_texts: bool = False,
        retention_days: int = 30,
        key_name: Callable[[str], str | None] = lambda _: None,
        is_disk_short: Callable[[], bool] = lambda: False,
        past_use: PastUse | None = None,
    ) -> None:
        """Nothing is recorded while the disk is nearly full."""
        self.has_texts = has_texts
        self._store = store
        self._is_disk_short = is_disk_short
        self._retention_days = retention_days
        self._key_name = key_name
        self._past_use = past_use
        self._waiting: list[ChatRow] = []
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        self._count_of: Counter[str] = Counter()
        self._dropped = 0
        self._is_failing = False
        self._lock = asyncio.Lock()
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    def keep(self, record: ChatRow) -> None:
        """Queue a record. It is written within about a second, in a batch."""
        size, caller = record.size, record.caller
        share = SHARE if caller else 1
        if (
            len(self._waiting) >= MAX_WAITING
            or self._bytes + size > MAX_WAITING_BYTES
            or self._count_of[caller] >= MAX_WAITING // share
            or self._bytes_of[caller] + size > MAX_WAITING_BYTES // share
        ):
            self._dropped += 1
        else:
            self._waiting.append(record)
            self._count([record], 1)
        self._behind.schedule()

    async def close(self) -> None:
        await self._behind.close()
        if self._waiting:
            logger.error("the records of %s chat requests could not be written and are lost", len(self._waiting))

    async def _flush(self) -> bool:
        """Write pending records. Returns whether some are left for another try."""
        async with self._lock:
            if self._waiting and self._is_disk_short():
                self._dropped += len(self._waiting)
                self._count(self._waiting, -1)
                self._waiting = []
            while self._waiting:
                try:
                    await run_to_completion(self._write_batch())
                except sqlite3.Error:
                    if not self._is_failing:
                        logger.warning("chat requests cannot be recorded for now; trying again", exc_info=True)
                    self._is_failing = True
                    break
                self._is_failing = False
            if self._dropped:
                logger.warning("the disk is nearly full or too slow: %s chat requests were not recorded", self._dropped)
                self._dropped = 0
        return bool(self._waiting)

    async def _write_batch(self) -> None:
        batch = self._waiting[:BATCH]
        try:
            await self._store.add(batch)
        except sqlite3.Error:
            raise
        except Exception:
            logger.exception("the records of %s chat requests are lost", len(batch))
        del self._waiting[: len(batch)]
        self._count(batch, -1)

    def _count(self, records: Sequence[ChatRow], sign: int) -> None:
        for record in records:
            self._bytes += sign * record.size
            self._bytes_of[record.caller] += sign * record.size
            self._count_of[record.caller] += sign
            if not self._count_of[record.caller]:
                del self._count_of[record.caller], self._bytes_of[record.caller]

    async def list(
        self,
        *,
        model: str | None = None,
        caller: str | None = None,
        stop_cause: str | None = None,
        outcome: str | None = None,
        page: int = 1,
        limit: int = DEFAULT_LIMIT,
    ) -> ChatPage:
        await self._flush()
        filter = ChatFilter(model=model, caller=caller, stop_cause=stop_cause, outcome=outcome)
        rows, total = await self._store.page(filter, offset=(page - 1) * limit, limit=limit)
        chats = [summary(row, self._key_name(row.caller)) for row in rows]
        return ChatPage(chats=chats, total=total, page=page, limit=limit)

    async def get(self, identity: str) -> ChatDetail:
        """One record with all its steps. Raises CHAT_NOT_FOUND."""
        row = await self._find(identity)
        return detail(row, self._key_name(row.caller))

    async def questions(self, links: Collection[str]) -> dict[str, str]:
        """The last user message of the chats with these links, of those whose texts are recorded; short ones only."""
        await self._flush()
        messages = await self._store.messages(links)
        found = {link: last_question(json.loads(own)) for link, own in messages.items()}
        return {link: text for link, text in found.items() if text}

    async def recent_requests(self) -> Sequence[str]:
        """What users asked for in the newest requests, as far as texts are recorded and can be past use."""
        await self._flush()
        recorded = await self._store.recent_messages(MAX_RECENT)
        texts = await asyncio.to_thread(lambda: [last_question(json.loads(messages)) for messages in recorded])
        return list(dict.fromkeys(filter(None, texts)))

    async def statistics(self, *, days: int = DEFAULT_DAYS) -> ChatStatistics:
        """Totals of the last days, overall and by model."""
        await self._flush()
        together, models = await self._store.sums(now_ms() - days * MS_PER_DAY)
        by_model = [ModelTotals(model=model, **totals(sums)) for model, sums in models.items()]
        return ChatStatistics(days=days, models=by_model, **totals(together))

    async def delete(self, identity: str) -> None:
        """Delete a record, and the usage that its chat recorded for the search. Raises CHAT_NOT_FOUND."""
        row = await self._find(identity)
        if self._past_use is not None and row.link:
            await self._past_use.forget_chat(row.link)
        with storage_faults():
            await self._store.delete(identity)

    async def _find(self, identity: str) -> ChatRow:
        await self._flush()
        row = await self._store.get(identity)
        if row is None:
            raise RequestError(
                f"There is no record of a chat {identity[:64]}; it may be older than records are kept",
                code="CHAT_NOT_FOUND",
            )
        return row

    async def sweep(self) -> None:
        """Delete records older than the retention time."""
        moment = now_ms() - self._retention_days * MS_PER_DAY
        try:
            while await self._store.delete_before(moment, limit=BATCH) == BATCH:
                pass
        except sqlite3.Error:
            logger.warning("old records of chat requests could not be removed; trying again later", exc_info=True)
        if self._past_use is not None:
            await self._past_use.forget_expired()

    async def keep_tidy(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

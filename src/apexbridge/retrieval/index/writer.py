"""Keeps the durable index in step with the one in memory: group commits, repair, the copy for a quick start."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.lance import Contents, IndexedSkill, LanceStore, StoreError
from apexbridge.retrieval.index.snapshot import write_snapshot
from apexbridge.retrieval.usage import UsagePair

GROUP_SECONDS = 0.05
"""Changes that come this close together are one commit."""
CHECK_SECONDS = 2.0
"""How often to see whether the store is still there."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Between tries to write to a disk that refuses."""
COMMITS_BEFORE_OPTIMIZE = 30
SNAPSHOT_AFTER_SECONDS = 2.0

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class IndexWriter:
    """Writes behind: what is asked of it is done soon, and again until it is done. It is asked on the event loop."""

    def __init__(
        self,
        store: LanceStore,
        snapshot: Path,
        *,
        model: Callable[[], tuple[str, int]],
        contents: Callable[[], Contents],
    ) -> None:
        self.problem: str | None = None
        """Why the durable copy is behind, where it is."""
        self._store = store
        self._snapshot = snapshot
        self._model = model
        self._contents = contents
        self._skills: dict[str, IndexedSkill | None] = {}
        self._pairs: dict[str, tuple[UsagePair, Floats] | None] = {}
        """By key; None for those to be removed."""
        self._erase = False
        """Whether past requests were forgotten of which nothing may stay in a file."""
        self._write_everything = False
        self._writing = False
        self._signature: str | None = None
        self._commits = 0
        self._snapshot_due: float | None = None
        self._changed = anyio.Event()
        self._stop = anyio.Event()
        self._thread = anyio.CapacityLimiter(1)
        self._round = anyio.Lock()

    # ------------------------------------------------------------------------------------------------- orders
    def put_skills(self, skills: Iterable[IndexedSkill]) -> None:
        """To be stored."""
        self._skills |= {skill.document.name: skill for skill in skills}
        self._changed.set()

    def drop_skills(self, names: Iterable[str]) -> None:
        """To be removed; what past requests taught of them stays."""
        self._skills |= dict.fromkeys(names)
        self._changed.set()

    def put_pair(self, pair: UsagePair, vector: Floats) -> None:
        """To be remembered."""
        self._pairs[pair.key] = (pair, vector)
        self._changed.set()

    def drop_pairs(self, pairs: Iterable[UsagePair]) -> None:
        """To be removed; what LanceDB keeps of deleted rows may stay for a while."""
        self._pairs |= dict.fromkeys(pair.key for pair in pairs)
        self._changed.set()

    def erase_pairs(self) -> None:
        """To be left with the pairs that are in memory, and nothing of any other in any file."""
        self._erase = True
        self._changed.set()

    @property
    def is_behind(self) -> bool:
        """Whether something waits to be written, or is being written."""
        return self._writing or self._write_everything or self._erase or bool(self._skills or self._pairs)

    # --------------------------------------------------------------------------------------------------- work
    def begin(self, signature: str) -> None:
        """The store as it was found; before that nothing is touched."""
        self._signature = signature

    async def run(self) -> None:
        """Keep in step until told to stop, then bring what is left to the disk, as far as it takes it."""
        pause = 0.0
        while not self._stop.is_set():
            with anyio.move_on_after(pause or CHECK_SECONDS):
                await (self._stop if pause else self._changed).wait()
            self._changed = anyio.Event()
            with anyio.move_on_after(GROUP_SECONDS):
                await self._stop.wait()
            await self._keep_up_whatever_happens()
            pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS) if self.problem else 0.0
        if self.is_behind:  # told to stop in the middle of a round
            await self._keep_up_whatever_happens()
        if not self.problem and self._signature is not None:
            await self._tidy()

    async def flush(self) -> None:
        """Write what waits now; what the disk does not take waits on, and `problem` says why."""
        with anyio.CancelScope(shield=True):  # a round that is cut off would lose what it was about to write
            await self._keep_up_whatever_happens()

    async def _keep_up_whatever_happens(self) -> None:
        try:
            async with self._round:
                await self._keep_up()
        except Exception as error:  # whatever it is, search goes on from memory and the next round tries again
            logger.exception("the index on disk could not be kept in step")
            self.problem = type(error).__name__
            self._write_everything = True

    async def _tidy(self) -> None:
        try:
            if self._commits:
                await self._blocking(self._store.optimize)
                self._signature = self._store.signature()
            if self._snapshot_due is not None:
                await self._write_snapshot()
        except StoreError as error:
            logger.warning("the index on disk could not be tidied up: %s", error)

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()
        self._changed.set()

    async def _keep_up(self) -> None:
        """One round: see that the store is as it was left, write what waits, tidy up."""
        if self._signature is None:
            return
        signature = await self._blocking(self._store.signature)
        if signature != self._signature:
            logger.warning("the index on disk was lost or changed by somebody else; it is written anew")
            self._write_everything = True
        if self._write_everything or self._erase or self._skills or self._pairs:
            self._writing = True
            try:
                await self._write()
            finally:
                self._writing = False
        elif self._snapshot_due is not None and time.monotonic() >= self._snapshot_due:
            await self._write_snapshot()

    async def _write(self) -> None:
        whole, self._write_everything = self._write_everything, False
        skills, self._skills = self._skills, {}
        pairs, self._pairs = self._pairs, {}
        erase, self._erase = self._erase, False
        try:
            if erase:
                await self._blocking(lambda: self._snapshot.unlink(missing_ok=True))
            if whole:
                await self._blocking(self._write_all)
            else:
                await self._blocking(lambda: self._write_changes(skills, pairs))
            if erase:
                await self._blocking(self._write_pairs_again)
        except (StoreError, OSError) as error:
            self._skills, self._pairs = {**skills, **self._skills}, {**pairs, **self._pairs}
            self._erase = self._erase or erase
            self._write_everything = whole or getattr(error, "is_damage", False)
            if self.problem != str(error):
                logger.warning("the index on disk cannot be written (%s); search goes on from memory", error)
            self.problem = str(error)
            return
        self.problem = None
        self._signature = await self._blocking(self._store.signature)
        if self._signature:
            self._snapshot_due = time.monotonic() + SNAPSHOT_AFTER_SECONDS

    def _write_all(self) -> None:
        self._snapshot.unlink(missing_ok=True)  # commits are counted from one again: it could match a later one
        self._store.replace(self._model()[0], self._contents())

    def _write_changes(
        self, skills: dict[str, IndexedSkill | None], pairs: dict[str, tuple[UsagePair, Floats] | None]
    ) -> None:
        embedder, _ = self._model()
        puts = [skill for skill in skills.values() if skill is not None]
        drops = [name for name, skill in skills.items() if skill is None]
        if puts or drops:
            self._store.write_skills(embedder, puts, drops)
        remembered = [pair for pair in pairs.values() if pair is not None]
        forgotten = [key for key, pair in pairs.items() if pair is None]
        if remembered or forgotten:
            self._store.write_pairs(embedder, remembered, forgotten)
        self._commits += 1
        if self._commits % COMMITS_BEFORE_OPTIMIZE == 0:
            self._store.optimize()

    def _write_pairs_again(self) -> None:
        self._store.rewrite_pairs(self._model()[0], self._contents().pairs)

    async def _write_snapshot(self) -> None:
        self._snapshot_due = None
        signature, (embedder, dimensions) = self._signature or "", self._model()
        await self._blocking(
            lambda: write_snapshot(
                self._snapshot, self._contents(), signature=signature, embedder=embedder, dimensions=dimensions
            )
        )

    async def _blocking(self, work: Callable[[], Result]) -> Result:
        return await anyio.to_thread.run_sync(work, limiter=self._thread)

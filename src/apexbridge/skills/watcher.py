"""Watches the skill roots for manual changes at runtime."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from watchfiles import awatch

from apexbridge._tasks import wait_up_to
from apexbridge.errors import ServerError
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.roots import SkillRoot

DEBOUNCE_MS = 400
"""Changes within this time are combined: unpacking a folder is one change, not a hundred."""
FIRST_LOOK_MS = 1_000
"""Time from the start of the watch to a scan of all roots."""
MAX_CHANGES = 2_000
SWEEP_SECONDS = 3
"""Polling interval if the kernel cannot watch the folders."""

logger = logging.getLogger(__name__)


async def watch(manager: SkillManager) -> None:
    """Apply changes below the roots until cancelled."""
    while True:
        moved = manager.store.roots_changed
        try:
            await _watch_until_moved(manager, moved)
        except Exception as error:  # inotify limit reached, file name not UTF-8 and others: polling always works
            logger.warning("folders cannot be watched (%s); scanning every %s s instead", error, SWEEP_SECONDS)
            await _sweep(manager, moved)


async def _watch_until_moved(manager: SkillManager, moved: asyncio.Event) -> None:
    roots = _present(manager)
    is_first = True
    async for changes in awatch(
        *(root.path for root in roots),
        watch_filter=None,
        debounce=DEBOUNCE_MS,
        stop_event=moved,
        rust_timeout=FIRST_LOOK_MS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    ):
        # Scan everything for changes that happened before the watch began, or that overflow the event queue.
        if is_first or len(changes) > MAX_CHANGES:
            is_first = False
            await _refresh(manager, {(root, None) for root in roots})
        elif changes:
            await _refresh(manager, _targets((Path(path) for _, path in changes), roots))
        await _retry(manager)
        if _present(manager) != roots:  # a root was created or removed: watch the current ones
            return


def _present(manager: SkillManager) -> list[SkillRoot]:
    return [root for root in manager.roots if root.path.is_dir()]


async def _sweep(manager: SkillManager, moved: asyncio.Event) -> None:
    while not moved.is_set():
        await wait_up_to(SWEEP_SECONDS, moved)
        await _refresh(manager, {(root, None) for root in manager.roots})
        await _retry(manager)


async def _retry(manager: SkillManager) -> None:
    """Retry changes that were not recorded because the disk was full or read-only."""
    try:
        await manager.retry()
    except ServerError:
        return  # still full, and already logged
    except Exception:
        logger.exception("changed folders could not be read")


async def _refresh(manager: SkillManager, targets: set[tuple[SkillRoot, str | None]]) -> None:
    try:
        await manager.refresh(targets)
    except Exception:  # a bad folder must not end the watch
        logger.exception("changed folders could not be read")


def _targets(paths: Iterable[Path], roots: list[SkillRoot]) -> set[tuple[SkillRoot, str | None]]:
    """What to scan for these paths: a folder of the installed root, or the whole of another root."""
    targets: set[tuple[SkillRoot, str | None]] = set()
    for path in paths:
        for root in roots:
            if path.is_relative_to(root.path):
                relative = path.relative_to(root.path).parts
                if not root.is_installed:
                    targets.add((root, None))
                elif relative and not relative[0].startswith("."):
                    targets.add((root, relative[0]))
    return targets

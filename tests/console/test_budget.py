"""What the first view costs: bytes, requests, and what the browser must draw."""

import gzip
from pathlib import Path

import pytest

from apexbridge.surfaces.console.built_files import DIST
from tests.console.conftest import Console, OpenPage

KB = 1024
FIRST_VIEW_BYTES = 60 * KB
FIRST_VIEW_REQUESTS = {"en-US": 10, "zh-CN": 12}
LARGEST_PART_BYTES = 60 * KB


@pytest.mark.parametrize("locale", FIRST_VIEW_REQUESTS)
def test_the_first_view_is_small_and_needs_few_requests(open_page: OpenPage, console: Console, locale: str) -> None:
    watched = open_page(console, locale=locale)
    watched.page.get_by_role("table").wait_for()
    watched.page.wait_for_function(
        "performance.getEntriesByType('resource').some((each) => each.name.includes('icon'))"
    )
    files = [
        request
        for request in watched.requests
        if "/assets/" in request.url or request.url.endswith(("/", "icon.svg")) or request.is_navigation_request()
    ]
    sizes = {request.url: request.sizes()["responseBodySize"] for request in files}
    assert sum(sizes.values()) <= FIRST_VIEW_BYTES, sizes
    assert len(watched.requests) <= FIRST_VIEW_REQUESTS[locale], [each.url for each in watched.requests]


def test_every_part_of_the_page_is_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in _scripts_and_styles()}
    assert max(sizes.values()) <= LARGEST_PART_BYTES, sizes


def _scripts_and_styles() -> list[Path]:
    found = [path for path in (DIST / "assets").iterdir() if path.suffix in (".js", ".css")]
    assert found
    return found

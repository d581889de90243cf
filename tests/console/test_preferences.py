"""What people set in their browser or system: a larger zoom, and less motion."""

import pytest
from playwright.sync_api import expect

from tests.chat.upstream import Step
from tests.console.conftest import Console, OpenPage

ADDRESSES = (
    "#/skills",
    "#/skills?install=1",
    "#/skills/csv-insights",
    "#/skills/csv-insights/files",
    "#/skills/csv-insights/versions",
    "#/skills/csv-insights/access",
    "#/skills/csv-insights/edit",
    "#/search?q=compare+two+tables&q2=%E8%A1%A8%E6%A0%BC",
    "#/run/csv-insights",
    "#/chat",
    "#/runs",
    "#/approvals",
    "#/audit",
    "#/insights",
    "#/system",
    "#/system/models",
    "#/system/keys",
    "#/system/settings",
    "#/system/storage",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_view_can_be_zoomed_to_200_percent(open_page: OpenPage, console: Console, address: str) -> None:
    """A window of 1280 pixels has 640 at this zoom."""
    page = open_page(console, address, viewport={"width": 640, "height": 400}, device_scale_factor=2).page
    expect(page.locator("main h1").first).to_be_visible()
    expect(page.locator("main .skeleton")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 640


def test_nothing_moves_for_those_who_want_less_motion(open_page: OpenPage, console: Console) -> None:
    running = "document.getAnimations().some((one) => one.effect.getComputedTiming().iterations === Infinity)"
    model = console.upstream.play(Step(text="Slowly", hang_after=1), Step(text="Slowly", hang_after=1))
    for preference, moves in (("no-preference", True), ("reduce", False)):
        page = open_page(console, "#/chat", reduced_motion=preference).page
        page.evaluate("model => localStorage.setItem('apexbridge.chat.options', JSON.stringify({ model }))", model)
        page.reload()
        page.get_by_role("textbox", name="Message").fill("Write.")
        page.get_by_role("textbox", name="Message").press("Enter")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        expect(page.get_by_role("article", name="Answer")).to_be_visible()
        if moves:
            page.wait_for_function(running)
        else:
            assert not page.evaluate(running)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Send")).to_be_visible()

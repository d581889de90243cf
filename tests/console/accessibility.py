"""What axe-core says about a page. Findings that hinder people fail the test."""

from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"
_RUN = """
async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(({impact}) => impact === 'serious' || impact === 'critical')
  .map(({id, help, nodes}) => ({id, help, nodes: nodes.slice(0, 5).map(({html, failureSummary}) =>
    `${html.slice(0, 300)}: ${failureSummary}`)}))
"""


@cache
def _axe() -> str:
    return AXE.read_text("utf-8")


def findings(page: Page) -> list[Any]:
    """Serious and critical findings on the page as it is now."""
    page.evaluate(_axe())
    found: list[Any] = page.evaluate(_RUN)
    return found

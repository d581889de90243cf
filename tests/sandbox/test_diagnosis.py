"""The diagnosis tests every guarantee on this host, and reports a proof for each."""

import pytest

from apexbridge.sandbox.config import GUARANTEES, BackendChoice, SandboxSettings
from apexbridge.sandbox.diagnosis import diagnose

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_a_working_backend_is_healthy_with_a_proof_for_each_guarantee(backend: BackendChoice) -> None:
    found = await diagnose(SandboxSettings(backend=backend))
    assert (found.ok, found.status, found.backend) == (True, "healthy", backend), found
    assert [finding.guarantee for finding in found.guarantees] == list(GUARANTEES)
    assert all(finding.held and finding.mechanism and finding.proof for finding in found.guarantees)
    assert {runtime.runtime for runtime in found.runtimes if runtime.works} == {"node", "python", "shell"}


@pytest.mark.slow
async def test_missing_guarantees_are_reported_with_a_remedy_for_each() -> None:
    found = await diagnose(SandboxSettings(backend="plain"))
    assert (found.ok, found.status, found.backend) == (False, "unavailable", "plain")
    missing = {finding.guarantee: finding for finding in found.guarantees if not finding.held}
    assert {"fs", "net", "syscalls"} <= set(missing)
    assert all(finding.remedy for finding in missing.values())


async def test_without_bubblewrap_the_diagnosis_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.sandbox.backends.find_bubblewrap", lambda path: None)
    found = await diagnose(SandboxSettings(backend="bubblewrap"))
    assert (found.ok, found.status, found.backend) == (False, "unavailable", None)
    assert "install bubblewrap" in (found.backends[0].remedy or "")
    assert [finding.held for finding in found.guarantees] == [False] * len(GUARANTEES)

"""The diagnosis tests every guarantee on this host, and reports a proof for each."""

import pytest

from apexbridge.sandbox import diagnosis
from apexbridge.sandbox.config import GUARANTEES, BackendChoice, SandboxSettings
from apexbridge.sandbox.diagnosis import diagnose
from apexbridge.sandbox.package_names import SYSTEM_PACKAGES

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
async def test_programs_are_looked_for_in_the_sandbox_and_reported_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "REPORTED_PROGRAMS", ("cat", "surely-missing"))
    monkeypatch.setitem(SYSTEM_PACKAGES, "surely-missing", "a-package")
    found = await diagnose(SandboxSettings(path="/usr/bin:/bin"))
    programs = {one.program: one for one in found.programs}
    assert (programs["cat"].found, programs["cat"].remedy) == (True, None)
    missing = programs["surely-missing"]
    assert (missing.found, missing.remedy) == (False, "apt-get install a-package")
    assert found.status == "healthy", "missing programs are not a fault of the sandbox"


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

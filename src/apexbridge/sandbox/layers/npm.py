"""Node packages, by an npm that runs no scripts and takes nothing from outside the registry."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from apexbridge.errors import ServerError
from apexbridge.sandbox.layers.build import Build
from apexbridge.sandbox.layers.words import failed, readable

_NPM_OPTIONS = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--no-progress",
    "--omit=dev",
    "--no-save",
    "--no-package-lock",
    "--logs-max=0",
    # Dependencies of dependencies may name any place. npm refuses those before it fetches them, and as a second line
    # there is no git, and every address left in the list of what was installed is one that is not the registry's.
    "--allow-git=none",
    "--allow-remote=none",
    "--allow-file=none",
    "--allow-directory=none",
    "--git=git-is-not-used-for-skills",
    "--omit-lockfile-registry-resolved",
)


async def install_node(build: Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have npm make a `node_modules`; its own configuration, which may name another registry, holds."""
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError(
            "npm is not on the PATH. Install Node.js with npm (the package `npm` of your system, or nodejs.org), "
            "and try again.",
            code="NOT_READY",
        )
    await _refuse_an_old_npm(build, npm)
    wanted = dict(_name_and_range(requirement) for requirement in requirements)
    manifest = json.dumps({"private": True, "dependencies": wanted})
    await anyio.Path(build.work / "package.json").write_text(manifest, "utf-8")
    code, words = await build.run([npm, "install", *_NPM_OPTIONS])
    if code:
        raise failed(f"The Node packages could not be installed. {words}")
    packages = await anyio.to_thread.run_sync(_node_packages, build.work / "node_modules")
    await anyio.Path(build.work / "node_modules").rename(build.layer / "node_modules")
    return packages


async def _refuse_an_old_npm(build: Build, npm: str) -> None:
    """Fail for an npm that does not know the options above: it would fetch any URL that a package names.

    Raises:
        ServerError: NOT_READY.
    """
    code, known = await replace(build, tell=lambda line: None).run([npm, "config", "get", "allow-remote"])
    if code or not known or "undefined" in known.split():
        raise ServerError(
            "This npm would fetch what packages name by a URL. Install a newer one with `npm install -g npm@latest`, "
            "and try again.",
            code="NOT_READY",
        )


def _node_packages(folder: Path) -> list[tuple[str, str]]:
    try:
        listed = json.loads((folder / ".package-lock.json").read_bytes())["packages"]
        outside = [path for path, package in listed.items() if "resolved" in package or "link" in package]
        packages = [(path.rpartition("node_modules/")[2], str(listed[path].get("version", ""))) for path in listed]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise failed("npm left no list of what it installed; a newer npm may do.") from error
    if outside:
        raise failed(f"The package {readable(outside[0])} is not from the registry: another package named its place.")
    return sorted(packages)


def _name_and_range(requirement: str) -> tuple[str, str]:
    name, _, versions = requirement.rpartition("@")
    return name, versions

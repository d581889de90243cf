"""Installs Node packages with npm, without running scripts or downloading from outside the registry."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from apexbridge.errors import ServerError
from apexbridge.sandbox.layers.build import Build, install_error, readable

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
    # Transitive dependencies may name any URL. npm refuses those before it downloads them. As a second defence there is
    # no git, and any URL in the list of installed packages is one outside the registry.
    "--allow-git=none",
    "--allow-remote=none",
    "--allow-file=none",
    "--allow-directory=none",
    "--git=git-is-not-used-for-skills",
    "--omit-lockfile-registry-resolved",
)


async def install_node(build: Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have npm create `node_modules`, with its own configuration, which may name another registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError(
            "npm is not on the PATH. Install Node.js with npm (the package `npm` of your system, or nodejs.org), "
            "and try again.",
            code="NOT_READY",
        )
    await _check_npm_version(build, npm)
    dependencies = dict(_name_and_range(requirement) for requirement in requirements)
    manifest = json.dumps({"private": True, "dependencies": dependencies})
    await anyio.Path(build.work / "package.json").write_text(manifest, "utf-8")
    code, output = await build.run([npm, "install", *_NPM_OPTIONS])
    if code:
        raise install_error(f"The Node packages could not be installed. {output}")
    packages = await anyio.to_thread.run_sync(_node_packages, build.work / "node_modules")
    await anyio.Path(build.work / "node_modules").rename(build.layer / "node_modules")
    return packages


async def _check_npm_version(build: Build, npm: str) -> None:
    """Fail for an npm without the options above: it would download any URL that a package names.

    Raises:
        ServerError: NOT_READY.
    """
    code, known = await replace(build, progress=lambda line: None).run([npm, "config", "get", "allow-remote"])
    if code or not known or "undefined" in known.split():
        raise ServerError(
            "This npm would download URLs that packages name. Install a newer one with `npm install -g npm@latest`, "
            "and try again.",
            code="NOT_READY",
        )


def _node_packages(folder: Path) -> list[tuple[str, str]]:
    try:
        listed = json.loads((folder / ".package-lock.json").read_bytes())["packages"]
        outside = [path for path, package in listed.items() if "resolved" in package or "link" in package]
        packages = [(path.rpartition("node_modules/")[2], str(listed[path].get("version", ""))) for path in listed]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise install_error("npm did not list the packages that it installed. Try a newer npm.") from error
    if outside:
        raise install_error(
            f"The package {readable(outside[0])} is not from the registry: another package named its URL."
        )
    return sorted(packages)


def _name_and_range(requirement: str) -> tuple[str, str]:
    name, _, versions = requirement.rpartition("@")
    return name, versions

"""Bundles: curated Python packages for all runs, each installed as one layer beneath the layers of skills."""

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apexbridge._tasks import in_thread
from apexbridge.errors import RequestError
from apexbridge.sandbox.layers import PYTHON_RUNTIME, Layer, LayerStore, Progress
from apexbridge.wire import WireModel

BUNDLES: Mapping[str, tuple[str, ...]] = {
    "documents": (
        "defusedxml",
        "lxml",
        "openpyxl",
        "pdf2image",
        "pdfplumber",
        "pillow",
        "pypdf<7",  # 7 removed what the recipes of public skills use
        "pypdfium2",
        "pytesseract",
        "python-docx",
        "python-pptx",
        "reportlab",
    ),
    "data": ("matplotlib", "numpy", "openpyxl", "pandas", "seaborn", "tabulate"),
    "web": (
        "beautifulsoup4",
        "httpx",
        "jinja2",
        "lxml",
        "markdown",
        "markdownify",
        "python-dotenv",
        "pyyaml",
        "requests",
    ),
    "images": ("imageio", "numpy", "pillow"),
}
"""By name, in the order in which a run finds them. The packages are those that public skills import most often."""
KEY_CHARACTERS = 32


class PackageVersion(WireModel):
    name: str
    version: str


class BundleView(WireModel):
    """A bundle, and what is installed of it."""

    name: str
    state: Literal["missing", "installing", "installed", "outdated"]
    """`outdated`: installed with another list of packages, by another version of apexbridge. Runs still see it."""
    requirements: list[str]
    packages: list[PackageVersion]
    """Name and version of everything that is installed, dependencies included."""
    size_bytes: int | None = None
    installed_at: datetime | None = None
    progress: str | None = None
    """While it is being installed: the installer's last line."""


class Bundles:
    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._progress: dict[str, str] = {}
        """The last line of each install that is in progress."""

    async def views(self) -> list[BundleView]:
        return [await self.view(name) for name in BUNDLES]

    async def view(self, name: str) -> BundleView:
        _check_name(name)
        return self._view(name, await in_thread(self._store.record, "python", _key(name)))

    async def install(self, name: str, progress: Progress | None = None) -> BundleView:
        """Install a bundle; does nothing if it is installed with the same list. On failure, the previous one stays.

        Packages that several bundles contain have the same version in all of them.

        Raises:
            RequestError: NOT_FOUND, no such bundle.
            ServerError: as `LayerStore.install` does.
        """
        _check_name(name)
        requirements = BUNDLES[name]
        record = await in_thread(self._store.record, "python", _key(name))
        if record is None or record.requirements != requirements:
            constraints = await in_thread(self._versions_of_others, name)

            def report(line: str) -> None:
                self._progress[name] = line
                if progress is not None:
                    progress(line)

            self._progress[name] = "starting the installer"
            try:
                await self._store.install(
                    "python", _key(name), requirements, report, constraints=constraints, bundle=name, replace=True
                )
            finally:
                self._progress.pop(name, None)
        return await self.view(name)

    async def remove(self, name: str) -> BundleView:
        """Remove a bundle, also layers of it for other versions of Python.

        Raises:
            RequestError: NOT_FOUND, no such bundle, or it is not installed.
        """
        _check_name(name)
        layers = [layer for layer in await in_thread(self._store.list) if layer.bundle == name]
        removed = [await asyncio.to_thread(self._store.remove, layer.kind, layer.key) for layer in layers]
        if not any(removed):
            raise RequestError(f"The bundle {name} is not installed.", code="NOT_FOUND")
        return await self.view(name)

    def layers(self) -> dict[str, Path]:
        """The folders of the installed bundles, by name, for every run."""
        found = {name: self._store.find("python", _key(name)) for name in BUNDLES}
        return {name: folder for name, folder in found.items() if folder is not None}

    def installed_packages(self) -> dict[str, str]:
        """The bundle that provides each installed package."""
        found: dict[str, str] = {}
        for name in BUNDLES:
            record = self._store.record("python", _key(name))
            for package, _ in record.packages if record else ():
                found.setdefault(canonicalize_name(package), name)
        return found

    def _versions_of_others(self, name: str) -> list[str]:
        records = [self._store.record("python", _key(other)) for other in BUNDLES if other != name]
        versions = {package: version for record in records if record for package, version in record.packages}
        return [f"{canonicalize_name(package)}=={version}" for package, version in sorted(versions.items())]

    def _view(self, name: str, record: Layer | None) -> BundleView:
        state: Literal["missing", "installing", "installed", "outdated"] = "missing"
        if name in self._progress:
            state = "installing"
        elif record is not None:
            state = "installed" if record.requirements == BUNDLES[name] else "outdated"
        return BundleView(
            name=name,
            state=state,
            requirements=list(BUNDLES[name]),
            packages=[PackageVersion(name=package, version=version) for package, version in record.packages]
            if record
            else [],
            size_bytes=record.size_bytes if record else None,
            installed_at=record.installed_at if record else None,
            progress=self._progress.get(name),
        )


def bundle_of(package: str) -> str | None:
    """The first bundle that lists a package; None if none does."""
    canonical = canonicalize_name(package)
    return next((name for name, listed in BUNDLES.items() if canonical in map(_name_of, listed)), None)


def _name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _key(name: str) -> str:
    return hashlib.sha256(f"bundle\n{name}\n{PYTHON_RUNTIME}".encode()).hexdigest()[:KEY_CHARACTERS]


def _check_name(name: str) -> None:
    if name not in BUNDLES:
        raise RequestError(f'No bundle named "{name[:100]}". There are: {", ".join(BUNDLES)}.', code="NOT_FOUND")

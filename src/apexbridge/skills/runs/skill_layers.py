"""Packages of skills and their layers: read at every run, installed only on explicit request."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apexbridge._tasks import in_thread
from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.bundles import Bundles, bundle_of
from apexbridge.sandbox.layers import NODE_RUNTIME, PYTHON_RUNTIME, LayerStore
from apexbridge.sandbox.programs import install_command
from apexbridge.skills.package.dependencies import (
    MAX_REQUIREMENTS,
    Dependencies,
    Package,
    parse_package,
    read_dependencies,
)
from apexbridge.skills.package.detection import Kind, Use, detect
from apexbridge.skills.package.skill import Needs
from apexbridge.skills.store.catalog import Row
from apexbridge.storage.package_store import PackageRow, PackageStore
from apexbridge.wire import WireModel

REMEMBERED = 1000
"""Skills whose declarations are cached, keyed by content hash."""
REMEMBERED_NEEDS = 50_000
"""Of which it is known whether they are met."""
Status = Literal["installed", "bundle", "declared", "missing", "unknown"]


class DetectedPackage(WireModel):
    """A package or program that a skill uses."""

    kind: Kind
    name: str
    """The module that is imported, the npm package, or the program."""
    package: str | None
    """What provides it. None if unknown."""
    status: Status
    """`installed` for the skill or, a program, on this host; `bundle`: in an installed bundle; `declared` or added, but
    not installed; `missing`; `unknown`: no known package provides it."""
    bundle: str | None = None
    """The bundle that has it, installed or not."""
    file: str
    line: int


class DependencyView(WireModel):
    """The packages of a skill: those that it declares, and those that an operator added."""

    python: list[str]
    node: list[str]
    added: list[str]
    """Those that an operator added, as `apex skills deps --add` takes them."""
    sources: list[str]
    problems: list[str]
    installed: bool
    """Whether all packages are installed; true if there are none."""
    detected: list[DetectedPackage] | None = None
    """With `detect`: what the skill's code uses."""
    commands: list[str] | None = None
    """With `detect`: the commands that add what is missing."""


class SkillLayers:
    def __init__(
        self, store: LayerStore, added: PackageStore, bundles: Bundles, *, has_program: Callable[[str], bool]
    ) -> None:
        """`has_program` returns whether runs find a program of the host."""
        self._store = store
        self._added = added
        self._bundles = bundles
        self._has_program = has_program
        self._known: OrderedDict[str, Dependencies] = OrderedDict()
        self._installed: tuple[set[tuple[str, str]], dict[str, str]] = set(), {}
        """The layers and the packages of bundles for which `_lacks` holds."""
        self._lacks: dict[tuple[Needs, tuple[Package, ...]], bool] = {}

    async def view(self, row: Row, folder: Path, *, with_detected: bool = False) -> DependencyView:
        """The declared and added packages, whether they are installed, and on request what the skill's code uses."""
        added = await self._added_to(row.name)
        declared = (await self._declared(row, folder)).with_added(added)
        missing = await in_thread(self._missing, declared)
        detected = await in_thread(self._detected, folder, declared) if with_detected else None
        return DependencyView(
            python=list(declared.python),
            node=list(declared.node_requirements),
            added=[package.spec for package in added],
            sources=list(declared.sources),
            problems=list(declared.problems),
            installed=not missing and not declared.problems,
            detected=detected,
            commands=None if detected is None else _commands(row.name, detected),
        )

    async def change(self, row: Row, *, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add packages to a skill and remove added ones. They stay if the skill is overwritten.

        Raises:
            InvalidInputError: a package is not a name with a version, or one to be removed was not added.
        """
        await self._changed(row, add, remove)
        packages = [parse_package(spec) for spec in add]
        keys = [(package.kind, package.name) for package in map(parse_package, remove)]
        rows = [PackageRow(kind=one.kind, name=one.name, requirement=one.requirement) for one in packages]
        await self._added.change(row.name, add=rows, remove=keys)

    async def _changed(self, row: Row, add: Sequence[str], remove: Sequence[str]) -> list[Package]:
        """The packages that a skill would have after a change. Raises as `change` does."""
        known = {(package.kind, package.name): package for package in await self._added_to(row.name)}
        removed = {spec: (package.kind, package.name) for spec in remove for package in [parse_package(spec)]}
        added = {(package.kind, package.name): package for package in map(parse_package, add)}
        if unknown := [spec for spec, key in removed.items() if key not in known]:
            listed = ", ".join(package.spec for package in known.values()) or "none"
            raise InvalidInputError(
                f"Not among the packages added to {row.name}: {', '.join(unknown)}. Added: {listed}."
            )
        after = {key: package for key, package in known.items() if key not in removed.values()} | added
        if len(after) > MAX_REQUIREMENTS:
            raise InvalidInputError(f"At most {MAX_REQUIREMENTS} packages can be added to a skill.")
        return list(after.values())

    async def added_to(self, skill: str) -> tuple[str, ...]:
        """The packages that were added to a skill, as `change` takes them."""
        return tuple(package.spec for package in await self._added_to(skill))

    async def restore(self, skill: str, packages: Sequence[str]) -> None:
        """Add the packages of a removed skill to it again."""
        rows = [
            PackageRow(kind=one.kind, name=one.name, requirement=one.requirement)
            for one in map(parse_package, packages)
        ]
        await self._added.change(skill, add=rows, remove=())

    async def forget(self, skill: str) -> None:
        """Remove the added packages of a removed skill."""
        await self._added.forget(skill)

    async def install(
        self,
        row: Row,
        folder: Path,
        progress: Callable[[str], None] | None = None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> DependencyView:
        """Install the declared and added packages, unless they are installed already.

        With `add` and `remove`, the packages that the skill would have after this change, which is not made.

        Raises:
            InvalidInputError: a declaration is invalid or not supported, or as `change`.
            ServerError: NOT_READY if there is no installer; EXECUTION_ERROR, STORAGE_FULL or TIMEOUT if it failed.
        """
        declared = (await self._declared(row, folder)).with_added(await self._changed(row, add, remove))
        if declared.problems:
            raise InvalidInputError(
                f"Nothing was installed: {'; '.join(declared.problems)}", errors=list(declared.problems)
            )
        if key := declared.python_key(PYTHON_RUNTIME):
            await self._store.install("python", key, declared.python, progress)
        if key := declared.node_key(NODE_RUNTIME):
            await self._store.install("node", key, declared.node_requirements, progress)
        return await self.view(row, folder)

    async def for_run(self, row: Row, folder: Path) -> tuple[Mapping[str, Path], list[str]]:
        """The layers of a run, and a warning about missing packages. A run never installs anything."""
        declared = await self._dependencies(row, folder)
        if declared.is_empty:
            return {}, []
        layers = await in_thread(self._layers, declared)
        missing = await in_thread(self._missing, declared)
        if not missing:
            return layers, []
        return layers, [f"not installed: {', '.join(missing)}. Install with: apex skills deps {row.name} --install"]

    async def _dependencies(self, row: Row, folder: Path) -> Dependencies:
        return (await self._declared(row, folder)).with_added(await self._added_to(row.name))

    async def _declared(self, row: Row, folder: Path) -> Dependencies:
        if row.content_hash not in self._known:
            self._known[row.content_hash] = await in_thread(read_dependencies, folder)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[row.content_hash]

    async def _added_to(self, skill: str) -> list[Package]:
        return _packages(await self._added.of(skill))

    async def lacking(self, needs: Mapping[str, Needs]) -> set[str]:
        """The skills that lack a package. `needs` has the packages that they declare and use, by name."""
        if not needs:
            return set()
        added = {skill: tuple(_packages(rows)) for skill, rows in (await self._added.of_all()).items()}
        return await in_thread(self._lacking, needs, added)

    def _lacking(self, needs: Mapping[str, Needs], added: Mapping[str, tuple[Package, ...]]) -> set[str]:
        installed = self._store.keys(), self._bundles.installed_packages()
        if installed != self._installed or len(self._lacks) > REMEMBERED_NEEDS:
            self._installed, self._lacks = installed, {}
        verdicts = self._lacks
        found = set()
        for skill, own in needs.items():
            key = own, added.get(skill, ())
            if key not in verdicts:
                verdicts[key] = self._is_lacking(*key, *installed)
            if verdicts[key]:
                found.add(skill)
        return found

    def _is_lacking(
        self,
        needs: Needs,
        added: Sequence[Package],
        layers: Collection[tuple[str, str]],
        in_bundles: Mapping[str, str],
    ) -> bool:
        declared = Dependencies(python=needs.python, node=needs.node).with_added(added)
        keys = (("python", declared.python_key(PYTHON_RUNTIME)), ("node", declared.node_key(NODE_RUNTIME)))
        if needs.has_problems or any(key and (kind, key) not in layers for kind, key in keys):
            return True
        others = {use for use in needs.uses if use[0] != "python" or use[1] not in in_bundles}
        return bool(others and others - self._requested(declared) - self._installed_packages(declared))

    def _requested(self, declared: Dependencies) -> set[tuple[str, str]]:
        requested = {("python", str(canonicalize_name(Requirement(text).name))) for text in declared.python}
        return requested | {("node", name) for name, _ in declared.node}

    def _layers(self, declared: Dependencies) -> dict[str, Path]:
        layers: dict[str, Path] = {}
        if (key := declared.python_key(PYTHON_RUNTIME)) and (found := self._store.find("python", key)):
            layers["python"] = found
        if (key := declared.node_key(NODE_RUNTIME)) and (found := self._store.find("node", key)):
            layers["node_modules"] = found / "node_modules"
        return layers

    def _missing(self, declared: Dependencies) -> list[str]:
        layers = self._layers(declared)
        missing = list(declared.python) if "python" not in layers else []
        return missing + (list(declared.node_requirements) if "node_modules" not in layers else [])

    # --------------------------------------------------------------------------------------------------- detected
    def _detected(self, folder: Path, declared: Dependencies) -> list[DetectedPackage]:
        requested = self._requested(declared)
        installed = self._installed_packages(declared)
        in_bundles = self._bundles.installed_packages()

        def status_of(use: Use) -> Status:
            if use.kind == "program":
                return "installed" if self._has_program(use.name) else "missing" if use.package else "unknown"
            if use.package is None:
                return "unknown"
            if (use.kind, use.package) in installed:
                return "installed"
            if use.kind == "python" and use.package in in_bundles:
                return "bundle"
            return "declared" if (use.kind, use.package) in requested else "missing"

        return [
            DetectedPackage(
                kind=use.kind,
                name=use.name,
                package=use.package,
                status=status_of(use),
                bundle=in_bundles.get(use.package) or bundle_of(use.package)
                if use.kind == "python" and use.package
                else None,
                file=use.path,
                line=use.line,
            )
            for use in detect(folder)
        ]

    def _installed_packages(self, declared: Dependencies) -> set[tuple[str, str]]:
        """Kind and name of everything in the skill's layers, dependencies included."""
        found: set[tuple[str, str]] = set()
        if (key := declared.python_key(PYTHON_RUNTIME)) and (record := self._store.record("python", key)):
            found |= {("python", canonicalize_name(name)) for name, _ in record.packages}
        if (key := declared.node_key(NODE_RUNTIME)) and (record := self._store.record("node", key)):
            found |= {("node", name) for name, _ in record.packages}
        return found


def _packages(rows: Sequence[PackageRow]) -> list[Package]:
    return [
        Package(kind="python" if row.kind == "python" else "node", name=row.name, requirement=row.requirement)
        for row in rows
    ]


def _commands(skill: str, detected: Sequence[DetectedPackage]) -> list[str]:
    """The commands that add what is missing: bundles, packages for the skill alone, programs of the host."""
    missing = [found for found in detected if found.status == "missing"]
    bundles = dict.fromkeys(found.bundle for found in missing if found.bundle)
    commands = [f"apex packages install {' '.join(filter(None, bundles))}"] if bundles else []
    others = [
        f"npm:{found.package}" if found.kind == "node" else str(found.package)
        for found in missing
        if found.kind != "program" and not found.bundle
    ]
    if others:
        commands.append(f"apex skills deps {skill} --add {' '.join(others)} --install")
    elif any(found.status == "declared" for found in detected):
        commands.append(f"apex skills deps {skill} --install")
    programs = dict.fromkeys(install_command(found.name) for found in missing if found.kind == "program")
    if packages := [command.removeprefix("apt-get install ") for command in programs if command]:
        commands.append(f"apt-get install {' '.join(packages)}")
    return commands

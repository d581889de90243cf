"""Detection of the packages and programs that a skill uses. Nothing of the skill is run."""

from pathlib import Path

from apexbridge.skills.package.detection import MAX_USES, detect

Found = dict[tuple[str, str], str]


def detected(tmp_path: Path, files: dict[str, str]) -> Found:
    """Kind and package, or name, of everything that is detected in a skill with these files; with file and line."""
    for name, text in files.items():
        path = tmp_path / "skill" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    uses = detect(tmp_path / "skill")
    names = {use: use.name if use.kind == "program" else use.package or use.name for use in uses}
    return {(use.kind, name): f"{use.path}:{use.line}" for use, name in names.items()}


def test_imports_of_python_scripts_are_found_with_the_packages_that_provide_them(tmp_path: Path) -> None:
    text = "import os, json\nfrom PIL import Image\nimport yaml\n\n"
    text += "def late():\n    import cv2, docx\n    from bs4 import x\n"
    text += "from google.cloud import storage\nimport pptx.util, fitz, sklearn.svm\n"
    assert detected(tmp_path, {"scripts/a.py": text}) == {
        ("python", "pillow"): "scripts/a.py:2",
        ("python", "pyyaml"): "scripts/a.py:3",
        ("python", "opencv-python-headless"): "scripts/a.py:6",
        ("python", "python-docx"): "scripts/a.py:6",
        ("python", "beautifulsoup4"): "scripts/a.py:7",
        ("python", "google-cloud-storage"): "scripts/a.py:8",
        ("python", "python-pptx"): "scripts/a.py:9",
        ("python", "pymupdf"): "scripts/a.py:9",
        ("python", "scikit-learn"): "scripts/a.py:9",
    }


def test_the_skills_own_modules_and_relative_imports_are_not_packages(tmp_path: Path) -> None:
    files = {
        "scripts/run.py": "import helper\nfrom core.frames import x\nfrom . import y\nfrom .z import w\n",
        "scripts/helper.py": "",
        "core/frames.py": "",
        "SKILL.md": "```python\nfrom core.frames import x\nimport helper\n```\n",
    }
    assert detected(tmp_path, files) == {}


def test_imports_for_type_checkers_are_ignored(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\nelse:\n    import numpy\n"
    assert list(detected(tmp_path, {"a.py": text})) == [("python", "numpy")]


def test_a_module_that_no_known_package_provides_has_no_package(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import surely_unknown.part\n")
    (use,) = detect(tmp_path)
    assert (use.name, use.package) == ("surely_unknown", None)


def test_a_script_that_is_not_valid_python_is_searched_line_by_line(tmp_path: Path) -> None:
    text = "import pandas as pd\n>>> from pypdf import PdfReader\nthis is not (python\n"
    assert detected(tmp_path, {"a.py": text}) == {("python", "pandas"): "a.py:1", ("python", "pypdf"): "a.py:2"}


def test_imports_of_javascript_are_found_and_built_in_modules_are_not(tmp_path: Path) -> None:
    text = """const fs = require('fs'), path = require("node:path");
const { Document } = require('docx');
// const no = require('commented');
import sharp from 'sharp';
import {
  a,
} from "@scope/name/deep/file.js";
const late = await import('pdf-lib');
import './own.js';
import alias from '@/components/x';
export * from 'zod';
"""
    assert detected(tmp_path, {"scripts/a.mjs": text}) == {
        ("node", "docx"): "scripts/a.mjs:2",
        ("node", "sharp"): "scripts/a.mjs:4",
        ("node", "@scope/name"): "scripts/a.mjs:7",
        ("node", "pdf-lib"): "scripts/a.mjs:8",
        ("node", "zod"): "scripts/a.mjs:11",
    }


def test_programs_that_shell_scripts_call_are_found(tmp_path: Path) -> None:
    text = """#!/bin/bash
set -euo pipefail
# soffice is a comment
helper() { echo "ffmpeg inside quotes"; }
helper
for f in *.md; do pandoc "$f" -o x.pdf && rm -f y; done
COUNT=$(pdfinfo a.pdf | grep Pages | awk '{
  tesseract
}')
case "$1" in
  git) echo 1 ;;
  *) jq . x.json ;;
esac
cat <<EOF
qpdf in a document
EOF
A=1 sudo own-tool --flag \\
  convert
if ! command -v exiftool; then exit 1; fi
if [[ "$1" =~ (movaps|qpdf) ]] && rg x; then own.sh; fi
"""
    assert detected(tmp_path, {"scripts/a.sh": text}) == {
        ("program", "pandoc"): "scripts/a.sh:6",
        ("program", "pdfinfo"): "scripts/a.sh:7",
        ("program", "jq"): "scripts/a.sh:12",
        ("program", "own-tool"): "scripts/a.sh:17",
        ("program", "rg"): "scripts/a.sh:20",
    }


def test_programs_that_python_starts_are_found(tmp_path: Path) -> None:
    text = """import os, shutil, subprocess
subprocess.run(["soffice", "--headless"], check=True)
subprocess.check_output("pdftotext a.pdf - | wc -l", shell=True)
os.system("ffmpeg -i a b")
if shutil.which("qpdf"): pass
subprocess.run([variable, "x"])
"""
    assert detected(tmp_path, {"a.py": text}) == {
        ("program", "soffice"): "a.py:2",
        ("program", "pdftotext"): "a.py:3",
        ("program", "ffmpeg"): "a.py:4",
        ("program", "qpdf"): "a.py:5",
    }


def test_code_blocks_of_every_markdown_file_are_read(tmp_path: Path) -> None:
    skill = """---
name: x
---
Use it:

```python
from pypdf import PdfReader
```

1. A list:

   ~~~js
   const p = require('pptxgenjs')
   ~~~

```bash
$ pandoc a.md -o a.docx
Input files: any-output-line
```

```tsx
import React from 'react'
```

The word `import pandas` is prose.
"""
    found = detected(tmp_path, {"SKILL.md": skill, "reference/MORE.md": "```py\nimport pdfplumber\n```\n"})
    assert found == {
        ("python", "pypdf"): "SKILL.md:7",
        ("node", "pptxgenjs"): "SKILL.md:13",
        ("program", "pandoc"): "SKILL.md:17",
        ("python", "pdfplumber"): "reference/MORE.md:2",
    }


def test_install_commands_name_packages(tmp_path: Path) -> None:
    text = """
Run `pip install openpyxl` first. Then `npm install -g docx@9`.

```bash
pip3 install -q -r requirements.txt "markitdown[pptx]>=0.1" pytesseract  # comment
uv add httpx && python -m pip install --index-url https://example.org/ lxml
npm i --save-dev @scope/tool ./local
pip install git+https://example.org/x.git <package> .
```

```python
# Requires: pip install pdf2image
```

```
pip install may fail and then you retry
```
"""
    found = detected(tmp_path, {"SKILL.md": text})
    assert {name for kind, name in found if kind == "python"} == {
        *("openpyxl", "markitdown", "pytesseract", "httpx", "lxml", "pdf2image")
    }
    assert {name for kind, name in found if kind == "node"} == {"docx", "@scope/tool"}


def test_a_package_is_listed_once_and_scripts_come_before_pages(tmp_path: Path) -> None:
    files = {
        "SKILL.md": "```python\nimport pypdf\n```\n`pip install pypdf`",
        "scripts/z.py": "import pypdf\nimport pypdf\n",
    }
    assert detected(tmp_path, files) == {("python", "pypdf"): "scripts/z.py:1"}


def test_hostile_files_end_within_limits(tmp_path: Path) -> None:
    many = "\n".join(f"import module_{number}" for number in range(5_000))
    deep = "(" * 100_000
    files = {"a.py": many, "b.py": deep, "c.sh": "'" * 1_000, "d.js": "import " * 5_000, "e.md": "`" * 5_000}
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "skill" / "bytes.py").write_bytes(b"import numpy\n\xff\xfe\0")
    assert len(detected(tmp_path, files)) == MAX_USES

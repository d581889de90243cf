"""Ten tasks, each with the skills it needs, what the model does, and how the result is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Language = Literal["python", "javascript", "shell"]


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A skill, in the style of public ones: instructions and helper scripts, no entry script."""

    name: str
    body: str
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] = ()
    """Added with `apex skills deps NAME --add`."""

    def package(self) -> dict[str, str]:
        head = f"---\nname: {self.name}\ndescription: {self.body.splitlines()[0]}\n---\n"
        return {"SKILL.md": head + self.body, **self.files}


@dataclass(frozen=True, kw_only=True)
class Code:
    """A call of run_code."""

    language: Language
    code: str

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        return "run_code", {"language": self.language, "code": self.code, "timeout": 120_000}


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str
    skills: Sequence[Skill]
    steps: Sequence[Code]
    result: str
    """The file that is checked, or `stdout` for the output of the last step."""
    check: str
    """Python code with `path`, the result, run by an interpreter with other libraries than the task's."""


FORMS = Skill(
    name="forms",
    body="Fill the fields of a PDF form.\n\n"
    "List the fields with scripts/fields.py, then run scripts/fill.py IN VALUES.json OUT.",
    files={
        "scripts/fields.py": "import json, sys\nfrom pypdf import PdfReader\n"
        "print(json.dumps(sorted(PdfReader(sys.argv[1]).get_fields())))\n",
        "scripts/fill.py": "import json, sys\nfrom pypdf import PdfReader, PdfWriter\n"
        "writer = PdfWriter(clone_from=PdfReader(sys.argv[1]))\nvalues = json.load(open(sys.argv[2]))\n"
        "for page in writer.pages:\n    writer.update_page_form_field_values(page, values, auto_regenerate=False)\n"
        "writer.write(sys.argv[3])\nprint('filled', len(values), 'fields')\n",
    },
)
SHEETS = Skill(
    name="sheets",
    body="Make spreadsheets with formulas.\n\n"
    "Use openpyxl. Write formulas, never computed values. Check with lib/audit.py.",
    files={
        "lib/audit.py": "from openpyxl import load_workbook\n\n\ndef formulas(path):\n"
        "    cells = (cell for row in load_workbook(path).active.iter_rows() for cell in row)\n"
        "    return {cell.coordinate: cell.value for cell in cells if cell.data_type == 'f'}\n"
    },
)
OFFICE = Skill(
    name="office",
    body="Edit Word documents.\n\n"
    "Run scripts/unpack.py IN FOLDER, edit word/document.xml, run scripts/pack.py FOLDER OUT.",
    files={
        "scripts/unpack.py": "import sys, zipfile\nzipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])\n"
        "print('unpacked')\n",
        "scripts/pack.py": "import os, sys, zipfile\nfrom defusedxml import ElementTree\nfolder = sys.argv[1]\n"
        "ElementTree.parse(folder + '/word/document.xml')\n"
        "with zipfile.ZipFile(sys.argv[2], 'w', zipfile.ZIP_DEFLATED) as out:\n"
        "    for parent, _, names in os.walk(folder):\n        for name in names:\n"
        "            path = os.path.join(parent, name)\n            out.write(path, os.path.relpath(path, folder))\n"
        "print('packed')\n",
    },
)
SLIDES = Skill(
    name="slides",
    body="Make slides.\n\nUse pptxgenjs in JavaScript: new pptxgen(), addSlide(), addText(), writeFile().",
    packages=["npm:pptxgenjs"],
)
CHARTS = Skill(name="charts", body="Draw charts.\n\nUse matplotlib, and save a PNG.")
TABLES = Skill(
    name="tables",
    body="Clean tables.\n\nRun scripts/clean.py IN OUT: trims cells, drops empty and repeated rows.",
    files={
        "scripts/clean.py": "import csv, sys\n"
        "rows = [[cell.strip() for cell in row] for row in csv.reader(open(sys.argv[1]))]\n"
        "kept = list(dict.fromkeys(tuple(row) for row in rows if any(row)))\n"
        "csv.writer(open(sys.argv[2], 'w', newline='')).writerows(kept)\nprint(len(kept), 'rows')\n"
    },
)
SITES = Skill(
    name="sites",
    body="Try a web page.\n\n"
    "Run scripts/with_server.py PORT COMMAND…: serves the current folder while the command runs.",
    files={
        "scripts/with_server.py": "import subprocess, sys, time, urllib.request\nport = sys.argv[1]\n"
        "server = subprocess.Popen([sys.executable, '-m', 'http.server', port, '--bind', '127.0.0.1'],\n"
        "                          stderr=subprocess.DEVNULL)\n"
        "try:\n    for _ in range(100):\n        try:\n"
        "            urllib.request.urlopen(f'http://localhost:{port}/', timeout=1)\n"
        "            break\n        except OSError:\n            time.sleep(0.05)\n"
        "    sys.exit(subprocess.run(sys.argv[2:]).returncode)\nfinally:\n    server.kill()\n"
    },
)
NOTES = Skill(
    name="notes",
    body="Turn notes into a page.\n\nUse marked in JavaScript: marked.parse(text).",
    packages=["npm:marked"],
)
LOGS = Skill(name="logs", body="Digest log files.\n\nUse grep, cut, sort, uniq and awk.")

DIRTY = "name, city \n Ada ,London\n,\n Ada ,London\nGrace, New York\n"
ORDERS = "region,amount\nnorth,10\nsouth,20\n\nnorth,30\nsouth,20\n"
WRITE_LETTER = (
    "from docx import Document\nd = Document()\nd.add_paragraph('Dear NAME, welcome.')\nd.save('letter.docx')"
)
LOG_LINES = "\n".join(f"2026-01-01 {'ERROR' if n % 5 == 0 else 'INFO'} job-{n % 3} done" for n in range(200))

TASKS = (
    Task(
        name="a PDF form is filled",
        skills=[FORMS],
        steps=[
            Code(
                language="python",
                code="from reportlab.pdfgen import canvas\nc = canvas.Canvas('form.pdf')\n"
                "for n, name in enumerate(('name', 'city')):\n"
                "    c.drawString(50, 750 - 40 * n, name)\n"
                "    c.acroForm.textfield(name=name, x=150, y=740 - 40 * n, width=200, height=20)\nc.save()",
            ),
            Code(language="shell", code="python /skills/forms/scripts/fields.py form.pdf"),
            Code(
                language="python",
                code="import json\njson.dump({'name': 'Ada Lovelace', 'city': 'London'}, open('values.json', 'w'))",
            ),
            Code(language="shell", code="python /skills/forms/scripts/fill.py form.pdf values.json filled.pdf"),
        ],
        result="filled.pdf",
        check="import pdfplumber\nfields = pdfplumber.open(path).doc.catalog['AcroForm'].resolve()['Fields']\n"
        "values = [f.resolve().get('V') for f in fields]\nassert b'Ada Lovelace' in values, values",
    ),
    Task(
        name="a spreadsheet with formulas is made and read",
        skills=[SHEETS],
        steps=[
            Code(
                language="python",
                code="from openpyxl import Workbook\nbook = Workbook()\nsheet = book.active\n"
                "for row in (('item', 'price'), ('tea', 3), ('cake', 4)): sheet.append(row)\n"
                "sheet['B4'] = '=SUM(B2:B3)'\nbook.save('report.xlsx')",
            ),
            Code(
                language="python",
                code="import sys\nsys.path.append('/skills/sheets/lib')\nimport audit\n"
                "found = audit.formulas('report.xlsx')\nprint(found)\nassert found == {'B4': '=SUM(B2:B3)'}",
            ),
        ],
        result="report.xlsx",
        check="from python_calamine import CalamineWorkbook\nimport zipfile\n"
        "rows = CalamineWorkbook.from_path(path).get_sheet_by_index(0).to_python()\n"
        "assert rows[1] == ['tea', 3.0], rows\n"
        "assert b'<f>SUM(B2:B3)</f>' in zipfile.ZipFile(path).read('xl/worksheets/sheet1.xml')",
    ),
    Task(
        name="a document is unpacked, edited and packed",
        skills=[OFFICE],
        steps=[
            Code(language="python", code=WRITE_LETTER),
            Code(language="shell", code="python /skills/office/scripts/unpack.py letter.docx unpacked"),
            Code(
                language="python",
                code="path = 'unpacked/word/document.xml'\ntext = open(path).read()\n"
                "open(path, 'w').write(text.replace('NAME', 'Ada'))",
            ),
            Code(language="shell", code="python /skills/office/scripts/pack.py unpacked letter-ada.docx"),
        ],
        result="letter-ada.docx",
        check="import mammoth\ntext = mammoth.extract_raw_text(open(path, 'rb')).value\n"
        "assert 'Dear Ada, welcome.' in text, text",
    ),
    Task(
        name="slides are made",
        skills=[SLIDES],
        steps=[
            Code(
                language="javascript",
                code="const pptxgen = require('pptxgenjs');\nconst deck = new pptxgen();\n"
                "deck.addSlide().addText('Quarterly report', { x: 1, y: 1, fontSize: 30 });\n"
                "deck.addSlide().addText('Thank you', { x: 1, y: 1 });\ndeck.writeFile({ fileName: 'deck.pptx' });",
            )
        ],
        result="deck.pptx",
        check="from pptx import Presentation\nslides = Presentation(path).slides\n"
        "texts = [shape.text_frame.text for slide in slides for shape in slide.shapes if shape.has_text_frame]\n"
        "assert texts == ['Quarterly report', 'Thank you'], texts",
    ),
    Task(
        name="a chart is drawn",
        skills=[CHARTS],
        steps=[
            Code(
                language="python",
                code="import matplotlib.pyplot as plt\nplt.figure(figsize=(4, 3))\nplt.bar(['a', 'b'], [1, 2])\n"
                "plt.title('Sales')\nplt.savefig('chart.png', dpi=100)",
            )
        ],
        result="chart.png",
        check="import png\nwidth, height, rows, info = png.Reader(path).asRGBA()\n"
        "assert (width, height) == (400, 300)\n"
        "assert len(set(map(bytes, rows))) > 10",
    ),
    Task(
        name="a table is cleaned",
        skills=[TABLES],
        steps=[
            Code(language="python", code=f"open('dirty.csv', 'w').write({DIRTY!r})"),
            Code(language="shell", code="python /skills/tables/scripts/clean.py dirty.csv clean.csv"),
        ],
        result="clean.csv",
        check="import polars\nrows = polars.read_csv(path).rows()\n"
        "assert rows == [('Ada', 'London'), ('Grace', 'New York')], rows",
    ),
    Task(
        name="a page is served and fetched inside",
        skills=[SITES],
        steps=[
            Code(language="python", code="open('index.html', 'w').write('<h1>It works</h1>')"),
            Code(
                language="shell",
                code="python /skills/sites/scripts/with_server.py 8011 python -c "
                '"import urllib.request as u; '
                "open('got.html', 'wb').write(u.urlopen('http://localhost:8011/index.html').read())\"",
            ),
        ],
        result="got.html",
        check="from lxml import html\nassert html.parse(path).findtext('.//h1') == 'It works'",
    ),
    Task(
        name="a Node skill uses its packages",
        skills=[NOTES],
        steps=[
            Code(
                language="javascript",
                code="import { marked } from 'marked';\nimport { writeFileSync } from 'node:fs';\n"
                "writeFileSync('notes.html', await marked.parse('# Notes\\n\\n- one\\n- two\\n'));",
            )
        ],
        result="notes.html",
        check="from lxml import html\npage = html.parse(path)\nassert page.findtext('.//h1') == 'Notes'\n"
        "assert [item.text for item in page.iter('li')] == ['one', 'two']",
    ),
    Task(
        name="a shell pipeline digests a log",
        skills=[LOGS],
        steps=[
            Code(language="python", code=f"open('app.log', 'w').write({LOG_LINES!r} + '\\n')"),
            Code(
                language="shell",
                code="grep ERROR app.log | cut -d' ' -f3 | sort | uniq -c | sort -k2 | awk '{print $2 \",\" "
                "$1}' > errors.csv",
            ),
        ],
        result="errors.csv",
        check="rows = open(path).read().split()\nassert rows == ['job-0,14', 'job-1,13', 'job-2,13'], rows",
    ),
    Task(
        name="two skills work on one table",
        skills=[TABLES, SHEETS],
        steps=[
            Code(language="python", code=f"open('orders.csv', 'w').write({ORDERS!r})"),
            Code(language="shell", code="python /skills/tables/scripts/clean.py orders.csv clean.csv"),
            Code(
                language="python",
                code="import csv\nfrom openpyxl import Workbook\nbook = Workbook()\nsheet = book.active\n"
                "for row in csv.reader(open('clean.csv')): sheet.append([int(c) if c.isdigit() else c for c "
                "in row])\n"
                "last = sheet.max_row\nsheet.append(['total', f'=SUM(B2:B{last})'])\nbook.save('orders.xlsx')\n"
                "import sys\nsys.path.append('/skills/sheets/lib')\nimport audit\n"
                "print(audit.formulas('orders.xlsx'))",
            ),
        ],
        result="orders.xlsx",
        check="from python_calamine import CalamineWorkbook\n"
        "rows = CalamineWorkbook.from_path(path).get_sheet_by_index(0).to_python()\n"
        "assert [row[1] for row in rows[1:4]] == [10.0, 20.0, 30.0], rows",
    ),
)
CHECK_PACKAGES = ("pdfplumber", "python-calamine", "mammoth", "python-pptx", "pypng", "polars", "lxml")
"""Installed for the checks, in an environment of their own."""

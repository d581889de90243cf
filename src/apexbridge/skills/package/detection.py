"""Detects the packages and programs that a skill uses, from its scripts and the code in its Markdown files.

Skills seldom declare what they import. Nothing is run: Python is parsed, JavaScript and shell are searched.
The files are untrusted, so number and size of what is read are bounded, and each search takes linear time.
"""

import ast
import re
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from apexbridge._safe_open import open_file_beneath
from apexbridge.sandbox.package_names import COMMON_PROGRAMS, SYSTEM_PACKAGES, distribution_of
from apexbridge.skills.package.dependencies import is_node_name
from apexbridge.skills.package.fingerprint import FolderTooLargeError, scan_folder

Kind = Literal["python", "node", "program"]
MAX_FILES = 1_000
MAX_FILE_BYTES = 512 * 1024
MAX_BYTES = 4 * 1024 * 1024
MAX_USES = 300
MAX_LINE_CHARACTERS = 2_000

_MARKDOWN = (".md", ".markdown")
_PYTHON_FENCES = frozenset({"python", "py", "python3"})
_NODE_FENCES = frozenset({"javascript", "js", "node", "mjs", "cjs"})
_SHELL_FENCES = frozenset({"bash", "sh", "shell", "zsh", "console", "shell-session"})
_NODE_SCRIPTS = (".js", ".mjs", ".cjs")
_SHELL_SCRIPTS = (".sh", ".bash")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*([\w+#.-]{0,30})")
_CODE_SPAN = re.compile(r"`([^`\n]{1,300})`")
_PYTHON_LINE = re.compile(
    r"\s*(?:>>>\s*)?(?:from\s+([A-Za-z_][\w.]{0,200})\s+import\b|import\s+([A-Za-z_][\w., ]{0,300}))"
)
_LONG_DOTTED_NAME = re.compile(r"(?:\.[\s\\]*+\w++[\s\\]*+){100}")
"""CPython parses `import a.b.c` in quadratic time."""
_NODE_IMPORTS = (
    re.compile(r"\brequire\(\s{0,20}['\"]([^'\"\n]{1,214})['\"]\s{0,20}\)"),
    re.compile(
        r"(?:^|[;}\s])(?:import|export)\s[^;'\"()]{0,300}?\bfrom\s{0,20}['\"]([^'\"\n]{1,214})['\"]", re.MULTILINE
    ),
    re.compile(r"(?:^|[\s;=(])import\s{0,20}\(?\s{0,20}['\"]([^'\"\n]{1,214})['\"]", re.MULTILINE),
)
_NODE_COMMENT = re.compile(r"\s*(?://|\*|/\*)")
_NODE_BUILTINS_TEXT = """
assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain events
fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl stream
string_decoder sys timers tls trace_events tty url util v8 vm wasi worker_threads zlib
"""
_NODE_BUILTINS = frozenset(_NODE_BUILTINS_TEXT.split())
_PIP = re.compile(
    r"(?<![\w-])(?:pip3?|uv\s{1,4}pip)\s{1,4}install\s{1,4}([^\n;&|#`)]{1,500})|\buv\s{1,4}add\s{1,4}([^\n;&|#`)]{1,500})"
)
_NPM = re.compile(r"(?<![\w-])(?:npm\s{1,4}(?:install|i|add)|(?:pnpm|yarn|bun)\s{1,4}add)\s{1,4}([^\n;&|#`)]{1,500})")
_OPTIONS_WITH_VALUE = frozenset(
    {"-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-i", "--index-url", "--extra-index-url", "-f"}
    | {"--find-links", "-t", "--target", "--python", "--prefix", "--registry", "--platform", "--python-version"}
)
_PLACEHOLDERS = frozenset(
    {"package", "packages", "package-name", "pkg", "name", "your-package", "module", "pip", "uv", "setuptools", "wheel"}
)
_PROSE_TEXT = """
a after also and any are as at be before by can did do does for from if in is it its may must no not of on once only
or should still that the then this to was when where which will with works you your
"""
_PROSE = frozenset(_PROSE_TEXT.split())
"""A sentence about an installer, not a command."""
_HEREDOC = re.compile(r"<<-?\s{0,4}(['\"]?)(\w{1,60})\1")
_QUOTE_OR_COMMENT = re.compile(r"\\.|['\"]|(?:^|(?<=\s))#")
_QUOTED_PACKAGE = re.compile(r"[A-Za-z@][\w.,@/\[\]<>=!~^*-]{1,100}\Z")
_ARITHMETIC = re.compile(r"\$?\(\([^()]{0,300}\)\)")
_ARRAY = re.compile(r"(?<!\w)\w{1,100}\+?=\([^()]{0,1000}\)?")
_CASE_LABEL = re.compile(r"\s*[^\s()][^()]{0,200}\)(?=\s|$)")
_SEPARATORS = re.compile(r"\$\(|\|\||&&|[|;&(){}`]")
_FUNCTION = re.compile(
    r"^[ \t]*(?:function[ \t]+)?([\w-]{1,100})[ \t]*\(\)|^[ \t]*function[ \t]+([\w-]{1,100})", re.MULTILINE
)
_ASSIGNMENT = re.compile(r"\w+\+?=")
_PROGRAM = re.compile(r"[A-Za-z][\w+-]{0,40}(?:\.[\w-]{1,20})?\Z")
_PREFIXES = frozenset(
    (
        "if",
        "then",
        "else",
        "elif",
        "do",
        "while",
        "until",
        "!",
        "time",
        "sudo",
        "env",
        "exec",
        "nohup",
        "command",
        "xargs",
        "builtin",
        "nice",
        "timeout",
        "-",
    )
)
_NO_COMMANDS = frozenset(("for", "case", "select", "function", "fi", "done", "esac", "in"))
"""What follows these is not a command."""
_STARTERS = frozenset({"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"})
_warnings_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A package or program that a skill uses, and where it was found first."""

    kind: Kind
    name: str
    """The module that is imported, the npm package, or the program."""
    package: str | None
    """What provides it: a distribution on the index, an npm package, or a package of the system. None if unknown."""
    path: str
    line: int


def detect(folder: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> list[Use]:
    """Everything outside the standard libraries that the skill uses; each once, scripts before Markdown files.

    Files larger than `max_file_bytes` are skipped.
    """
    return _Detector(folder, max_file_bytes).detect()


class _Detector:
    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._own: frozenset[str] = frozenset()
        self._path = ""
        self._found: dict[tuple[Kind, str], Use] = {}

    def detect(self) -> list[Use]:
        try:
            paths = [file.path for file in scan_folder(self._folder).files if file.size <= self._max_file_bytes]
        except (FolderTooLargeError, OSError):
            return []
        self._own = frozenset(
            part.removesuffix(".py") for path in paths if path.endswith(".py") for part in PurePosixPath(path).parts
        )
        scripts = [path for path in paths if path.endswith((".py", *_NODE_SCRIPTS, *_SHELL_SCRIPTS))]
        pages = [path for path in paths if path.lower().endswith(_MARKDOWN)]
        remaining = MAX_BYTES
        for path in (*scripts, *pages)[:MAX_FILES]:
            text = self._text_of(path)
            remaining -= len(text)
            if remaining < 0 or len(self._found) >= MAX_USES:
                break
            self._path = path
            self._read_file(text)
        kinds = ("python", "node", "program")
        return sorted(self._found.values(), key=lambda use: (kinds.index(use.kind), use.package or "~", use.name))

    def _text_of(self, path: str) -> str:
        try:
            with open_file_beneath(self._folder, path) as file:
                data = file.read(self._max_file_bytes)
        except OSError:
            return ""
        return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")

    def _read_file(self, text: str) -> None:
        if self._path.endswith(".py"):
            self._read_python(text, 0)
        elif self._path.endswith(_NODE_SCRIPTS):
            self._read_node(text, 0)
        elif self._path.endswith(_SHELL_SCRIPTS):
            self._read_shell(text, 0, any_program=True)
        else:
            self._read_markdown(text)

    # --------------------------------------------------------------------------------------------------- Markdown
    def _read_markdown(self, text: str) -> None:
        fence, language, begin = "", "", 0
        body: list[str] = []
        for number, line in enumerate(text.split("\n"), 1):
            match = _FENCE.match(line[:MAX_LINE_CHARACTERS])
            if not fence:
                if match:
                    fence, language, begin, body = match[1], match[2].lower(), number, []
                else:
                    for span in _CODE_SPAN.findall(line[:MAX_LINE_CHARACTERS]):
                        self._read_installs(span, number)
            elif match and match[1].startswith(fence) and not match[2]:
                self._read_fence(language, "\n".join(body), begin)
                fence = ""
            else:
                body.append(line)

    def _read_fence(self, language: str, text: str, begin: int) -> None:
        text = textwrap.dedent(text)
        if language in _PYTHON_FENCES:
            self._read_python(text, begin)
        elif language in _NODE_FENCES:
            self._read_node(text, begin)
        elif language in _SHELL_FENCES:
            self._read_shell(text, begin, any_program=False)
        if language not in _SHELL_FENCES:  # commands in comments, or in a block without a language
            for number, line in enumerate(text.split("\n"), begin + 1):
                self._read_installs(line, number)

    # ------------------------------------------------------------------------------------------------- languages
    def _read_python(self, text: str, offset: int) -> None:
        try:
            if _LONG_DOTTED_NAME.search(text):
                raise ValueError("a dotted name with hundreds of parts")
            with _warnings_lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # do not log invalid escapes in untrusted source
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # an excerpt, or another version of Python
            for number, line in enumerate(text.split("\n"), offset + 1):
                if match := _PYTHON_LINE.match(line[:MAX_LINE_CHARACTERS]):
                    for module in (match[1] or match[2]).split(","):
                        self._add_module(module.split()[0] if module.split() else "", number)
            return
        for node in _nodes(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add_module(alias.name, offset + node.lineno)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names if node.module and not node.level else ():
                    self._add_module(f"{node.module}.{alias.name}", offset + node.lineno)
            elif isinstance(node, ast.Call):
                self._read_call(node, offset)

    def _read_call(self, call: ast.Call, offset: int) -> None:
        """Programs that Python starts, or looks for."""
        function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        argument: ast.expr | None = call.args[0] if call.args else None
        if function in _STARTERS and isinstance(argument, ast.List | ast.Tuple) and argument.elts:
            argument = argument.elts[0]
            function = "which"
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            return
        line = offset + call.lineno
        if function in ("which", "create_subprocess_exec"):
            self._add_program(argument.value, line, any_program=True)
        elif function == "system" or (function in _STARTERS and any(word.arg == "shell" for word in call.keywords)):
            self._read_shell(argument.value[:MAX_LINE_CHARACTERS], line - 1, any_program=False)

    def _read_node(self, text: str, offset: int) -> None:
        lines = ["" if _NODE_COMMENT.match(line) else line[:MAX_LINE_CHARACTERS] for line in text.split("\n")]
        code = "\n".join(lines)
        for pattern in _NODE_IMPORTS:
            line, searched = offset + 1, 0
            for match in pattern.finditer(code):
                line += code.count("\n", searched, match.start(1))
                searched = match.start(1)
                self._add_node(match[1], line)

    def _read_shell(self, text: str, offset: int, *, any_program: bool) -> None:
        functions = {name for pair in _FUNCTION.findall(text) for name in pair}
        for number, line in _shell_lines(text, offset):
            self._read_installs(line, number)
            for program in _commands(line):
                if program not in functions:
                    self._add_program(program, number, any_program=any_program)

    def _read_installs(self, line: str, number: int) -> None:
        """`pip install x` and `npm install y`."""
        line = line[:MAX_LINE_CHARACTERS]
        for match in _PIP.finditer(line):
            for word in _packages(match[1] or match[2]):
                try:
                    requirement = Requirement(word)
                except InvalidRequirement:
                    continue
                if not requirement.url:
                    name = canonicalize_name(requirement.name)
                    self._add(Use(kind="python", name=name, package=name, path=self._path, line=number))
        for match in _NPM.finditer(line):
            for word in _packages(match[1]):
                self._add_node(word[:1] + word[1:].partition("@")[0], number)

    # ------------------------------------------------------------------------------------------------------ found
    def _add_module(self, module: str, line: int) -> None:
        top = module.partition(".")[0]
        if not top or top in sys.stdlib_module_names or top in self._own or not top.isascii():
            return
        self._add(Use(kind="python", name=top, package=distribution_of(module), path=self._path, line=line))

    def _add_node(self, name: str, line: int) -> None:
        package = "/".join(name.split("/")[: 2 if name.startswith("@") else 1])
        is_path = name.startswith((".", "/", "#", "~", "@/")) or ":" in name
        if not is_path and package not in _NODE_BUILTINS and package not in _PLACEHOLDERS and is_node_name(package):
            self._add(Use(kind="node", name=package, package=package, path=self._path, line=line))

    def _add_program(self, program: str, line: int, *, any_program: bool) -> None:
        is_named = bool(_PROGRAM.match(program)) and program not in COMMON_PROGRAMS and not program.endswith(".sh")
        if is_named and (any_program or program in SYSTEM_PACKAGES):
            package = SYSTEM_PACKAGES.get(program)
            self._add(Use(kind="program", name=program, package=package, path=self._path, line=line))

    def _add(self, use: Use) -> None:
        key = use.kind, use.name if use.kind == "program" else use.package or use.name
        known = self._found.get(key)
        is_earlier = known is not None and known.path == use.path and use.line < known.line
        if is_earlier or (known is None and len(self._found) < MAX_USES):
            self._found[key] = use


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, except for imports that only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (
            getattr(node.test, "id", ""),
            getattr(node.test, "attr", ""),
        ):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _shell_lines(text: str, offset: int) -> Iterator[tuple[int, str]]:
    """Each command line with its number: without quoted text, comments and here-documents; continued lines joined."""
    quote = heredoc = begun = ""
    first = offset + 1
    for number, full in enumerate(text.split("\n"), offset + 1):
        line = full[:MAX_LINE_CHARACTERS]
        if heredoc:
            heredoc = "" if line.strip() == heredoc else heredoc
            continue
        if not quote and (found := _HEREDOC.search(line)):
            heredoc = found[2]
        if not begun:
            first = number
        line, quote = _without_quotes(line, quote)
        begun = begun[:MAX_LINE_CHARACTERS] + line
        if quote:
            continue
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        yield first, begun
        begun = ""


def _without_quotes(line: str, quote: str) -> tuple[str, str]:
    """A line without quoted text and comment, and the quote that is still open at its end."""
    plain: list[str] = []
    start = 0
    while start < len(line):
        if quote:
            end = line.find(quote, start)
            while quote == '"' and end > 0 and line[end - 1] == "\\":
                end = line.find(quote, end + 1)
            if end < 0:
                return "".join(plain), quote
            plain.append(_quoted_word(line[start:end]))
            quote, start = "", end + 1
            continue
        match = _QUOTE_OR_COMMENT.search(line, start)
        if match is None:
            plain.append(line[start:])
            break
        plain.append(line[start : match.start()])
        start = match.end()
        if match[0].startswith("\\"):
            plain.append(match[0])
        elif match[0] in "'\"":
            quote = match[0]
        else:
            break
    return "".join(plain), quote


def _quoted_word(text: str) -> str:
    """Quoted text is kept only if it may be one package, such as "pypdf>=4"."""
    return text if _QUOTED_PACKAGE.match(text) else "_"


def _commands(line: str) -> Iterator[str]:
    """The first word of each simple command in a line of shell."""
    line = _without_tests(_ARITHMETIC.sub(" ", _ARRAY.sub(" ", line.strip().removeprefix("$ "))))
    if label := _CASE_LABEL.match(line):
        line = line[label.end() :]
    for segment in _SEPARATORS.split(line):
        for word in segment.split():
            if word in _NO_COMMANDS:
                break
            if word in _PREFIXES or _ASSIGNMENT.match(word):
                continue
            yield word
            break


def _without_tests(line: str) -> str:
    """A line without `[[ … ]]`, which may contain a regular expression."""
    while (start := line.find("[[ ")) >= 0:
        end = line.find("]]", start)
        line = line[:start] + "_" + (line[end + 2 :] if end >= 0 else "")
    return line


def _packages(text: str) -> Iterator[str]:
    """The packages among the arguments of an installer."""
    is_value = False
    words = text.split()
    if not _PROSE.isdisjoint(words):
        return
    for word in words:
        if is_value or word.startswith("-"):
            is_value = not is_value and word in _OPTIONS_WITH_VALUE
            continue
        name = word.strip("\"',.:")
        if name and name.lower() not in _PLACEHOLDERS and not name.startswith(("<", "[", "$", "{", ".", "/")):
            yield name
        if word.endswith((".", ":", ",")):  # the end of a sentence
            break

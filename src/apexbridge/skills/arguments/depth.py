"""A look at Python source before it is parsed: whether its expressions could nest deeper than a parser's stack.

Nothing is understood here. Every word and operator may add a level until a comma or the end of the line, so they are
counted, through all open brackets; real scripts stay far below the limit and a hostile one is not parsed at all.
"""

import re

MAX_DEPTH = 2_000
"""Levels that an expression could have; CPython's own parser gives up at about 6,000."""
MAX_BRACKETS = 60
MAX_CHAINED = 1_000
"""`elif` and `lambda` of a whole file: each may nest in the one before, over lines and commas."""
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\f\r]++|\\\r?\n)
    | (?P<line>\n)
    | (?P<string>(?P<prefix>[A-Za-z]{0,2}+)(?P<quote>\"\"\"|'''|"|'))
    | (?P<word>\w++)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<comma>[,;])
    | (?P<other>.)
    """,
    re.VERBOSE,
)
_STRING_END = {
    '"': re.compile(r'(?:[^"\\\n]|\\.)*+"', re.DOTALL),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+'", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*+"""', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*+'''", re.DOTALL),
}


def is_shallow(source: str) -> bool:
    """Whether the source can be parsed without harm; False also for text that is no Python."""
    counts = [0]  # what may nest at each level of brackets
    total = chained = position = 0
    while position < len(source):
        token = _TOKEN.match(source, position)
        if token is None:
            return False
        position = token.end()
        kind = token.lastgroup
        added = 1
        if kind == "space" or (kind == "line" and len(counts) > 1):
            continue
        if token[0] == "#":
            end_of_line = source.find("\n", position)
            position = len(source) if end_of_line < 0 else end_of_line
            continue
        if kind in ("comma", "line"):
            total -= counts[-1]
            counts[-1] = 0
            continue
        if kind == "string":
            end = _end_of_string(token, source)
            if end is None:
                return False
            if "f" in token["prefix"].lower():
                added = _words_of_expressions(source[position : end - len(token["quote"])])
            position = end
        elif kind == "open":
            counts.append(0)
        elif kind == "close":
            if len(counts) == 1:
                return False
            total -= counts.pop()
        elif token[0] in ("elif", "lambda"):
            chained += 1
        counts[-1] += added
        total += added
        if total > MAX_DEPTH or len(counts) > MAX_BRACKETS or chained > MAX_CHAINED:
            return False
    return True


def _end_of_string(token: re.Match[str], source: str) -> int | None:
    end = _STRING_END[token["quote"]].match(source, token.end())
    return end.end() if end else None


def _words_of_expressions(body: str) -> int:
    """How long the longest `{…}` of an f-string is; too long where it does not end, as only newer Pythons allow."""
    longest, position = 1, 0
    while (position := body.find("{", position)) >= 0:
        position += 1
        if body.startswith("{", position):
            position += 1
            continue
        words, level = 0, 1
        while level:
            token = _TOKEN.match(body, position)
            if token is None or words > MAX_DEPTH:
                return MAX_DEPTH + 1
            position = token.end()
            words += 1
            level += {"{": 1, "}": -1}.get(token[0], 0)
            if token.lastgroup == "string":
                end = _end_of_string(token, body)
                if end is None:
                    return MAX_DEPTH + 1
                position = end
        longest = max(longest, words)
    return longest

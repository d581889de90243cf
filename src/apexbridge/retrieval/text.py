"""Text analysis for search: words and tags of a skill, keyword tokens, clauses and translation of a request."""

import re
import threading
import unicodedata
from collections import Counter
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from apexbridge._text import CJK_RANGES, normalized
from apexbridge.retrieval.dictionary import MAX_TERM_CHARACTERS, meanings

MAX_CLAUSES = 6
MAX_MARKS = 30
"""Combining marks per character, as in Unicode's stream-safe text. Normalizing sorts them in quadratic time."""
MAX_STEMMED_CHARACTERS = 64
"""Longer runs of letters are not words. Stems are cached, so these would fill the cache."""
MIN_CLAUSE_WORDS = 3
MIN_CLAUSE_CHARACTERS = 4
"""For scripts without spaces."""
MAX_TAGS = 5
MIN_TAG_CHARACTERS = 3
MIN_ASCII = 0.8
"""Share of the letters of an English text: more others are another script."""
MIN_GIST_WORDS = 2
"""One word of the dictionary alone is too ambiguous."""
# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from", "help", "how", "i",
    "in", "is", "it", "me", "my", "need", "needs", "of", "on", "or", "please", "that", "the", "these", "this", "those",
    "to", "use", "used", "user", "users", "using", "want", "wants", "we", "what", "when", "which", "with", "would",
    "you", "your",
})
CHINESE_STOP_WORDS = frozenset({
    "一个", "一些", "一下", "为我", "之后", "之前", "什么", "今天", "他的", "以便", "以及", "以后", "你们", "你的",
    "使用", "关于", "其他", "其他的", "再次", "给我", "可以", "可能", "哪些", "哪个", "哪里", "多少", "如何", "如果",
    "已经", "希望", "帮助", "帮忙", "帮我", "帮我们", "怎么", "怎么样", "想要", "想知道", "我们", "我想", "我的",
    "我要", "所有", "提供", "时候", "明天", "是否", "有关", "有没有", "根据", "然后", "现在", "的话", "知道", "确保",
    "能够", "能否", "自己", "谢谢", "请帮", "请问", "起来", "这个", "这些", "进行", "通过", "那个", "那些", "还有",
    "还是", "这里", "那里", "需要", "麻烦",
})
ENGLISH_WORDS = frozenset({
    "about", "all", "an", "and", "any", "are", "at", "between", "by", "can", "do", "does", "for", "from", "how", "i",
    "in", "into", "is", "it", "me", "my", "new", "of", "on", "or", "our", "please", "that", "the", "these", "this",
    "to", "what", "when", "where", "which", "who", "why", "with", "your",
})
"""Words without a topic that tell English from other languages."""
FOREIGN_WORDS = frozenset({
    # Spanish and Portuguese
    "al", "ao", "aos", "como", "cuáles", "cuántas", "cuántos", "de", "del", "dois", "dos", "duas", "el", "esta", "este",
    "estos", "la", "las", "los", "meu", "mi", "minha", "mis", "na", "nas", "nos", "numa", "os", "para", "por", "que",
    "quero", "quiero", "sin", "su", "sus", "tu", "um", "uma", "un", "una", "unos",
    # French and Italian
    "au", "aux", "avec", "ce", "cet", "cette", "che", "ces", "dans", "della", "delle", "dei", "des", "di", "du", "due",
    "en", "est", "et", "gli", "il", "je", "le", "les", "ma", "mes", "mio", "mon", "nel", "nella", "ou", "pour", "quel",
    "quelle", "questa", "questo", "sur", "une",
    # German and Dutch
    "auf", "aus", "das", "dem", "den", "der", "deze", "diese", "diesen", "dieses", "ein", "eine", "einem", "einen",
    "einer", "eines", "für", "het", "hoe", "ich", "ins", "ist", "mein", "meine", "meinen", "met", "mijn", "mit", "naar",
    "nach", "oder", "sind", "und", "van", "voor", "von", "wie", "zu", "zum", "zur",
    # Polish, Swedish, Turkish
    "att", "bir", "bu", "dla", "ett", "för", "från", "hur", "için", "ile", "jak", "jaka", "med", "moje", "och", "på",
    "till", "två", "ve",
})
"""The same of other languages that are written in Latin letters, except those that English has too."""
GENERIC_WORDS = frozenset({
    "about", "across", "after", "agent", "all", "also", "and", "any", "app", "ask", "asks", "assistant", "based",
    "before", "best", "between", "build", "claude", "com", "common", "complete", "comprehensive", "create", "creates",
    "creating", "custom", "default", "different", "each", "easy", "existing", "expert", "file", "files", "find", "full",
    "generate", "get", "gives", "good", "guide", "guidelines", "has", "have", "helper", "helps", "http", "https",
    "include", "includes", "including", "into", "its", "kit", "like", "make", "makes", "making", "manage", "manager",
    "mentions", "more", "multiple", "new", "not", "one", "only", "other", "over", "own", "practices", "provide",
    "provides", "pro", "read", "run", "runs", "set", "should", "simple", "skill", "skills", "some", "standard", "such",
    "support", "supports", "system", "task", "tasks", "than", "their", "them", "then", "they", "tool", "toolkit",
    "tools", "trigger", "triggers", "two", "util", "utils", "various", "via", "was", "way", "well", "will", "within",
    "without", "work", "working", "works", "workflow", "write", "writes", "writing", "www",
})
# fmt: on

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CJK_CHARACTER = re.compile(f"[{CJK_RANGES}]")
_KANA_OR_HANGUL = re.compile("[\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3]")
_CONTRACTION = re.compile(r"(?<=[a-z])(?:(?<!\bca)n['’]t|(?<=\bcan)['’]t|['’](?:s|re|ve|ll|d|m))\b", re.IGNORECASE)
"""The end of `what's`, `don't`, `we're`: no word of its own."""
_WORD = re.compile(rf"[{CJK_RANGES}]+|[^\W_{CJK_RANGES}]+")
_CUT = re.compile(
    # Without the lookbehind, a run of spaces would be scanned again from each of them.
    r"[.;!?。；！？\n]+\s*|[,，、:：]\s*|(?<!\s)\s+(?:and|then|also|but|so|after|before|while|plus)\s+"
    r"|然后|并且|并|再|同时|接着|以及|还有|另外|最后|之后",
    re.IGNORECASE,
)
_LATIN_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+#-]*")
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn"}
_stemming = threading.Lock()
"""Stemmers are not thread-safe: one stores its current word."""


def visible(text: str) -> str:
    """The text in NFKC, without control characters and lone surrogates, and with single spaces."""
    characters: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= MAX_MARKS:
            characters.append(" " if unicodedata.category(character) in _INVISIBLE else character)
    return " ".join(normalized("NFKC", "".join(characters)).split())


def has_cjk(text: str) -> bool:
    return _CJK_CHARACTER.search(text) is not None


def is_chinese(text: str) -> bool:
    """Whether the glossary and the dictionary can translate it."""
    return has_cjk(text) and _KANA_OR_HANGUL.search(text) is None


def is_english(text: str) -> bool:
    """Whether an English-only model can read it. Names and words that do not show a language count as English."""
    letters = [character for character in text if character.isalpha()]
    if sum(character.isascii() for character in letters) < MIN_ASCII * len(letters):
        return False
    words: list[str] = _WORD.findall(text)
    foreign = sum(word.lower() in FOREIGN_WORDS or (word.islower() and not word.isascii()) for word in words)
    return foreign <= sum(word.lower() in ENGLISH_WORDS for word in words)


def name_words(name: str) -> str:
    """A name as words: "git Commit" for `gitCommit`, "git commit" for `git-commit`."""
    return " ".join(_WORD.findall(_CAMEL.sub(" ", name)))


def plain_words(text: str) -> list[str]:
    """The words in lower case; a run of CJK characters counts as one."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", _CONTRACTION.sub("", text)))]


def word_count(text: str) -> float:
    """Length in words; CJK has about 1.7 characters per word."""
    characters = len(_CJK_CHARACTER.findall(text))
    return sum(1 for word in _WORD.findall(text) if not has_cjk(word)) + characters / 1.7


def tokens(text: str) -> list[str]:
    """Tokens for keyword search: stems of words and pairs of CJK characters, without stop words."""
    found: list[str] = []
    for word in plain_words(text):
        if has_cjk(word):
            found.extend(word[start : start + 2] for start in range(len(word) - 1))
            if len(word) == 1:
                found.append(word)
        elif len(word) > MAX_STEMMED_CHARACTERS:
            found.append(word[:MAX_STEMMED_CHARACTERS])
        elif word not in STOP_WORDS:
            found.append(_stem(word))
    return found


def words_by_token(text: str) -> dict[str, str]:
    """The words of a request by token, and for Chinese their translations. Without CJK words."""
    found = plain_words(text)
    for part in _parts(text) if has_cjk(text) else ():
        found += plain_words(" ".join(part.english))
    words: dict[str, str] = {}
    for word in found:
        if not has_cjk(word):
            for token in tokens(word):
                words.setdefault(token, word)
    return words


def clauses(text: str) -> list[str]:
    """The clauses of a request that asks for several things; empty if it asks for one."""
    stripped = [clause.strip(" \"'“”‘’") for clause in _CUT.split(text)]
    found = [
        clause
        for clause in stripped
        if len(clause.split()) >= MIN_CLAUSE_WORDS or len(_CJK_CHARACTER.findall(clause)) >= MIN_CLAUSE_CHARACTERS
    ]
    return found[:MAX_CLAUSES] if len(found) > 1 else []


def derive_tags(name: str, description: str) -> tuple[str, ...]:
    """Tags for a skill that declares none: specific words of the name, then those that the description repeats."""
    counts = Counter(_specific_words(description))
    repeated = [word for word, count in counts.most_common() if count > 1]
    return tuple(dict.fromkeys([*_specific_words(name), *repeated]))[:MAX_TAGS]


def _specific_words(text: str) -> list[str]:
    return [
        word
        for word in plain_words(text)
        if len(word) >= MIN_TAG_CHARACTERS
        and not word.isdigit()
        and not has_cjk(word)  # CJK has no spaces: this is a phrase, not a word
        and word not in GENERIC_WORDS
        and word not in STOP_WORDS
    ]


class Translated(NamedTuple):
    """Keyword tokens of a request in the other language."""

    by_glossary: list[str]
    """Of the words that skills are about."""
    by_dictionary: list[str]
    """Of all other Chinese words. They have many meanings, so they serve only skills in English."""


def translated(text: str) -> Translated:
    """The request in the other language."""
    if not has_cjk(text):
        chinese_of = _glossary().chinese_of
        return Translated(list(dict.fromkeys(token for word in tokens(text) for token in chinese_of.get(word, ()))), [])
    by_glossary, by_dictionary = dict[str, None](), dict[str, None]()
    for part in _parts(text):
        if part.source is not None:
            found = by_glossary if part.source == "glossary" else by_dictionary
            found.update(dict.fromkeys(tokens(" ".join(part.english))))
    return Translated(list(by_glossary), [token for token in by_dictionary if token not in by_glossary])


def english_gist(text: str) -> str | None:
    """A Chinese request as English words, in its order; None if too few of its words are known."""
    parts = _parts(text) if has_cjk(text) else []
    gist = " ".join(parts[0].english[:MIN_GIST_WORDS] if len(parts) == 1 else [part.english[0] for part in parts])
    is_clear = len(gist.split()) >= MIN_GIST_WORDS or any(part.source == "glossary" for part in parts)
    return gist if is_clear else None


class _Part(NamedTuple):
    """A word of a Chinese request in English."""

    english: list[str]
    """The best first."""
    source: Literal["glossary", "dictionary"] | None
    """None if the word is English."""


@lru_cache(maxsize=1000)
def _parts(text: str) -> list[_Part]:
    """The words of a Chinese request that are English or can be translated: the longest known terms, from the left."""
    glossary = _glossary()
    found: list[_Part] = []
    position = 0
    while position < len(text):
        if latin := _LATIN_WORD.match(text, position):
            found.append(_Part([latin[0].lower()], None))
            position = latin.end()
            continue
        for end in range(min(len(text), position + MAX_TERM_CHARACTERS), position + 1, -1):
            term = text[position:end]
            if term in glossary.gist_of:
                found.append(_Part([word.replace("_", " ") for word in glossary.gist_of[term]], "glossary"))
            elif term in CHINESE_STOP_WORDS:
                pass
            elif known := meanings(term):
                found.append(_Part(known, "dictionary"))
            else:
                continue
            position = end
            break
        else:
            position += 1
    return found


class _Glossary(NamedTuple):
    """Chinese and English words for the same thing, so that a request matches skills in the other language too."""

    gist_of: dict[str, list[str]]
    """English words by Chinese term, best first."""
    chinese_of: dict[str, list[str]]
    """Tokens by English stem."""


@cache
def _glossary() -> _Glossary:
    gist_of, chinese_of = dict[str, list[str]](), dict[str, list[str]]()
    for line in files("apexbridge.retrieval").joinpath("glossary.txt").read_text("utf-8").splitlines():
        words = line.split() if not line.startswith("#") else []
        english = [word for word in words if not has_cjk(word)]
        stems = tokens(" ".join(english))
        for term in filter(has_cjk, words):
            gist_of[term] = list(dict.fromkeys([*gist_of.get(term, []), *english]))
            for stem in stems:
                chinese_of.setdefault(stem, []).extend(tokens(term))
    return _Glossary(gist_of, chinese_of)


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    with _stemming:
        return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> Any:
    import snowballstemmer  # imports every language

    return snowballstemmer.stemmer("english")

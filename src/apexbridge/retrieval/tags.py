"""Tags for skills that declare none, derived from name and description."""

from collections import Counter

from apexbridge.retrieval.text import STOP_WORDS, has_cjk, plain_words

MAX_TAGS = 5
MIN_CHARACTERS = 3
# fmt: off
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


def derive_tags(name: str, description: str) -> tuple[str, ...]:
    """Specific words of the name, then those that the description repeats."""
    in_name = [word for word in plain_words(name) if _is_specific(word)]
    counts = Counter(word for word in plain_words(description) if _is_specific(word))
    repeated = [word for word, count in counts.most_common() if count > 1]
    return tuple(dict.fromkeys([*in_name, *repeated]))[:MAX_TAGS]


def _is_specific(word: str) -> bool:
    if has_cjk(word):  # CJK has no spaces: this is a phrase, not a word
        return False
    return len(word) >= MIN_CHARACTERS and not word.isdigit() and word not in GENERIC_WORDS and word not in STOP_WORDS

"""`apex-offline`: a small planner that answers if no model is configured, with the same loop and tools.

It is not a language model. It knows a few patterns, and otherwise searches for a skill.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import quote

from apexbridge._text import CJK_RANGES, estimated_tokens
from apexbridge.agent.request import BadRequestError
from apexbridge.llm.config import Upstream
from apexbridge.llm.tool_modes import text_of

Json = dict[str, Any]
OFFLINE_MODEL = "apex-offline"
OFFLINE_UPSTREAM = Upstream(name=OFFLINE_MODEL, base_url="", tool_mode="native")
NOTICE = (
    "(apex-offline is not a language model, only a planner. Set APEX_LLM_BASE_URL, APEX_LLM_API_KEY and APEX_LLM_MODEL "
    "to have a real one answer.)"
)
NOTICE_ZH = (
    "（apex-offline 不是语言模型，只是一个规划器。设置 APEX_LLM_BASE_URL、APEX_LLM_API_KEY 和 APEX_LLM_MODEL "
    "之后，由真正的模型回答。）"
)
GOOD_SCORE = 0.5
"""Skills below this confidence are listed, not run."""
FOLLOW_UP_SCORE = 0.7
"""The same for a later message of a conversation: most of them refer to what was said before."""
MAX_TEXT = 2_000
SHORT_SKILL_CHARACTERS = 800
"""Longer instructions are summarized."""
MAX_HEADINGS = 6


class _Replies(NamedTuple):
    """What the planner says, in one language."""

    greeting: str
    thanks: str
    goodbye: str
    abilities: str
    skills: str
    no_skills: str
    more_skills: str
    nothing: str
    no_skill: str
    candidates: str
    follow_up: str
    failed: str
    notice: str


_ENGLISH = _Replies(
    greeting="Hello. I calculate, know the date, read workspace files, and find and run skills. "
    'Ask "what can you do" for examples.',
    thanks="You are welcome.",
    goodbye="Goodbye.",
    abilities="Without a language model I can:\n"
    '- calculate: "15% of 340", "sqrt(144) + 10"\n'
    '- say the date and the time: "what day is it"\n'
    '- list and read files of the workspace: "list my files", "read the file notes.txt"\n'
    "- find an installed skill for a task, and run it if one text is all it needs: describe the task in a sentence\n"
    "See what is installed with: apex skills list",
    skills="These skills are installed:",
    no_skills="No skill is installed. Install one with: apex skills install SOURCE",
    more_skills="See all of them with: apex skills list",
    nothing="There is nothing I can do with that here.",
    no_skill="I found no skill for that. See what is installed with: apex skills list",
    candidates="These skills may help; name the one you want:",
    follow_up="I do not understand this as a follow-up: I read each message without the ones before it. "
    "Write the whole question, or connect a model.",
    failed="That did not work: ",
    notice=NOTICE,
)
_CHINESE = _Replies(
    greeting="你好。我可以计算、查看日期、读取工作区文件，并查找和运行技能。问“你能做什么”可以看到例子。",
    thanks="不客气。",
    goodbye="再见。",
    abilities="没有语言模型时，我可以：\n"
    "- 计算：“340的15%是多少”、“sqrt(144) + 10”\n"
    "- 查看日期和时间：“今天星期几”\n"
    "- 列出和读取工作区的文件：“列出文件”\n"
    "- 查找适合任务的技能，如果它只需要一段文字就运行它：用一句话描述任务\n"
    "查看已安装的技能：apex skills list",
    skills="已安装的技能：",
    no_skills="没有安装技能。安装：apex skills install SOURCE",
    more_skills="查看全部：apex skills list",
    nothing="这个我在这里做不到。",
    no_skill="没有找到合适的技能。查看已安装的技能：apex skills list",
    candidates="这些技能可能有用，请说出需要的那个：",
    follow_up="我不理解这个后续问题：我只看每条消息本身，不看之前的对话。请写出完整的问题，或者连接一个模型。",
    failed="没有成功：",
    notice=NOTICE_ZH,
)
_CHINESE_TEXT = re.compile(f"[{CJK_RANGES}]")
_INTENTS = {
    "greeting": r"(?:hi|hello|hey|good (?:morning|afternoon|evening))(?: (?:there|again|all|everyone))?"
    r"|你好|您好|嗨|早上好|晚上好",
    "thanks": r"(?:thanks|thank you|thx)(?: (?:a lot|so much|very much|again|for [^,.;]{1,40}))?|谢谢你?|多谢",
    "goodbye": r"(?:good)?bye(?: bye| for now)?|see you(?: later| soon)?|再见|拜拜",
    "abilities": r"what (?:can|do) you do(?: for me)?|(?:who|what) are you|(?:please |can you )?help(?: me)?"
    r"|how can you help(?: me)?|what (?:features|functions|tools) (?:do you have|are there)"
    r"|你(?:能|会|可以)(?:帮我)?做?(?:什么|哪些)|你是谁|帮助|帮我|帮帮我|你?有(?:什么|哪些)功能",
    "skills": r"(?:(?:please )?(?:list|show)(?: me)?(?: all)?(?: the| your| my)?|(?:what|which))"
    r"(?: installed| available)? skills(?: do (?:you|i) have| are (?:there|installed|available)| can you use)?"
    r"|what are your skills|(?:列出|显示|查看)(?:所有|全部)?(?:已安装)?的?技能|你?有(?:什么|哪些)技能",
}
"""Patterns of whole messages."""
_INTENT = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _INTENTS.items()), re.IGNORECASE)
_COURTESY = re.compile(
    r"(?:(?:hi|hello|hey|thanks|thank you|ok|okay|so)\b|你好|您好|谢谢|请问)[\s,.!;:，。！]{0,5}", re.IGNORECASE
)
"""At the beginning of a message; what follows is the question."""
_END = " \t\r\n.!?…~。！？"
MAX_LISTED_SKILLS = 20
MAX_LISTED_CHARACTERS = 80
"""Of a skill's description."""
_REFERS = re.compile(
    r"(?:and|but|why|how so|again|more|shorter|longer|it|that|this one|the (?:first|second|last|other) one"
    r"|(?:do|make|explain|repeat|change|fix|translate|summari[sz]e|shorten) (?:it|that|them)"
    r"|can you (?:do|make|explain|repeat) (?:it|that|them)"
    r"|为什么|再|那|然后|继续|换|把它|短一点|详细)(?:\b|[，。？?]|\s|$)",
    re.IGNORECASE,
)
"""How a message begins that refers to the ones before it."""
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_PERCENT_OF = re.compile(
    rf"({_NUMBER})\s{{0,5}}(?:%|％|percent|per cent)\s{{0,5}}(?:of|的)\s{{0,5}}({_NUMBER})", re.IGNORECASE
)
_OF_PERCENT = re.compile(rf"({_NUMBER})\s{{0,5}}的\s{{0,5}}({_NUMBER})\s{{0,5}}[%％]")
_CHINESE_PERCENT = re.compile(rf"百分之\s{{0,5}}({_NUMBER}|[一二两三四五六七八九十百零]{{1,8}})")
_CHINESE_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"两": 2}
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3}){1,5}(?![\d,])")
_ROOT_OF = re.compile(rf"(square|cube) root of ({_NUMBER})|({_NUMBER})\s{{0,5}}的(平方|立方)根", re.IGNORECASE)
_ARITHMETIC = re.compile(
    r"(?:[\d.,\s+\-*/^%×÷!()（）＋－√π]|(?:sqrt|cbrt|exp|ln|log10|log2|log|sin|cos|tan|abs|factorial)\s?\(|\bpi\b)+",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"\d\s?\)?\s?(?:[-+*/^×÷＋－]\s?[-(（√]?\s?[\da-zπ]|!|%\s?[-+*/])|[a-z]\(\d|√\d", re.IGNORECASE)
_ISO_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_SPOKEN = {"plus": "+", "minus": "-", "times": "*", "x": "*", "divided by": "/", "加": "+", "减": "-"}
_SPOKEN |= {"乘以": "*", "乘": "*", "除以": "/"}
_SPOKEN_OPERATOR = re.compile(
    r"(?<=\d)\s{0,3}(plus|minus|times|x|divided by|乘以|除以|加|减|乘)\s{0,3}(?=\d)", re.IGNORECASE
)
_DATE_QUESTION = re.compile(
    r"(?:\s|(?:and|at|be|can|current|date|day|do|exact|here|is|it|know|local|me|now|of|on|please|right|s|tell|the|time"
    r"|today|was|week|weekday|what|whats|which|will|you)\b|['’,]){1,60}",
    re.IGNORECASE,
)
"""Only these words: "now fill the form" is not about the time."""
_DATE_SUBJECT = re.compile(
    r"\b(?:date|day|now|time|today|weekday)\b|现在|今天|几点|几号|几月|日期|时间|星期|周几|礼拜", re.I
)
_OTHER_DAY = re.compile(r"\b(?:\d{4}-\d\d-\d\d|yesterday|tomorrow)\b|昨天|明天|前天|后天", re.IGNORECASE)
_ZONE_NAME = re.compile(r"\bin ([a-z][\w/ +-]{1,40}?)(?: right)?(?: now| today)?\Z", re.IGNORECASE)
_CHINESE_DATE = re.compile(
    r"(?:现在|今天|当前|是|的|日期|时间|星期|周|礼拜|几|号|日|月|点|钟|了|什么|多少|呢|吗|告诉我|\s|，){1,20}"
)
_FILE = re.compile(r"\b(?:read|show|open|cat)\b.{0,20}?\bfile\b\s+[`'\"]?([\w./-]+)", re.IGNORECASE)
_LIST = re.compile(r"\b(?:list|show)\b.{0,20}?\bfiles\b|列出.{0,4}文件", re.IGNORECASE)
_HIT = re.compile(r"^\d+\. ([a-z0-9:-]+) \(([\d.]+), (runs|instructions)\): (.*)(?:\n   input: (.*))?$", re.MULTILINE)
_MARK = re.compile(r"\A\[Output of the skill [^\]]*\]\n")
"""A note for models, at the beginning of a skill's output."""
_HEADING = re.compile(r"^#{1,3} (.{1,80})", re.MULTILINE)
_WEEKDAYS = "一二三四五六日"


class OfflineModel:
    def __init__(
        self, client_names: Collection[str] = (), skills: Callable[[], Sequence[tuple[str, str]]] = tuple
    ) -> None:
        """`client_names` are the client's own tools, of which `tool_choice: "required"` demands one.

        `skills` returns the names and descriptions of the installed skills.
        """
        self.client_names = client_names
        self.skills = skills

    async def ask(self, upstream: Upstream, body: Json, seconds: float) -> "OfflineAnswer":
        return OfflineAnswer(body, self)

    def done(self, answer: "OfflineAnswer") -> None:
        pass


class OfflineAnswer:
    """One step of the plan, as the chunks of a stream. Raises BadRequestError if a required call is not possible."""

    def __init__(self, body: Json, model: OfflineModel) -> None:
        calls, text = _next_step(body, model)
        self._chunks = _chunks(body, calls, text)

    async def next(self) -> list[Json] | None:
        chunk = next(self._chunks, None)
        return None if chunk is None else [chunk]


def check_supported(body: Json) -> None:
    """Refuse what a planner cannot do. Raises BadRequestError."""
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else form
    if kind not in (None, "text", "json_object"):
        raise BadRequestError(
            f"apex-offline cannot answer in the response_format {str(kind)[:64]!r}; it has text and json_object. "
            "Connect a model with APEX_LLM_BASE_URL for others.",
            param="response_format",
        )
    choice = body.get("tool_choice")
    if choice not in (None, "none", "auto", "required") and _named(choice) is None:
        raise BadRequestError("'tool_choice' is none, auto, required, or a function by its name.", param="tool_choice")


# ------------------------------------------------------------------------------------------------------- chunks
def _chunks(body: Json, calls: list[Json], text: str) -> Iterator[Json]:
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk", "created": int(time.time())}
    head["model"] = OFFLINE_MODEL

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\S+\s*|\s+", text):
        yield chunk({"content": word})
    if calls:
        yield chunk({"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]})
    yield chunk({}, "tool_calls" if calls else "stop")
    if not body.get("stream") or (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(body, calls, text)}


def _usage(body: Json, calls: list[Json], text: str) -> Json:
    """Estimated tokens."""
    prompt = ceil(estimated_tokens(json.dumps([body["messages"], body.get("tools") or []], ensure_ascii=False)))
    answer = ceil(estimated_tokens(text) + (estimated_tokens(json.dumps(calls)) if calls else 0))
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


# -------------------------------------------------------------------------------------------------------- steps
class _Done(NamedTuple):
    """A call since the question, and its result."""

    name: str
    arguments: str
    result: str


def _next_step(body: Json, model: OfflineModel) -> tuple[list[Json], str]:
    """Tool calls, or the final text."""
    messages = body["messages"]
    asked = next((text_of(item.get("content")) for item in reversed(messages) if item["role"] == "user"), "")[:MAX_TEXT]
    replies = _CHINESE if _CHINESE_TEXT.search(asked) else _ENGLISH
    done = _since_the_question(messages)
    choice = body.get("tool_choice")
    functions = [tool["function"] for tool in body.get("tools") or () if isinstance(tool.get("function"), dict)]
    offered = {} if choice == "none" else {function["name"]: function.get("parameters") for function in functions}
    if not done and (choice == "required" or _named(choice)):
        clients = {name: schema for name, schema in offered.items() if name in model.client_names}
        return [_required_call(choice, asked, (clients or offered) if choice == "required" else offered)], ""
    is_later = sum(item["role"] == "user" for item in messages) > 1
    step = _after(done, asked, set(offered), replies, is_later=is_later) if done else None
    if step is None:
        step = _first_step(asked, set(offered), replies, model.skills, is_later=is_later)
    if not isinstance(step, str):
        return [step], ""
    if (body.get("response_format") or {}).get("type") == "json_object":
        return [], json.dumps({"answer": step}, ensure_ascii=False)
    return [], f"{step}\n\n{replies.notice}"


def _first_step(
    asked: str,
    offered: set[str],
    replies: _Replies,
    skills: Callable[[], Sequence[tuple[str, str]]],
    *,
    is_later: bool,
) -> Json | str:
    """The first call for a question, or an answer without one."""
    call = _first_call(asked, offered)
    is_search = call is not None and call["function"]["name"] == "search_skills"
    if call is not None and not is_search:
        return call
    if found := _INTENT.fullmatch(asked.strip(_END)) or _INTENT.fullmatch(_question(asked)):
        if found.lastgroup == "skills" and is_search:
            return _skill_list(skills(), replies)
        return replies.abilities if found.lastgroup == "skills" else str(getattr(replies, str(found.lastgroup)))
    if is_search and is_later and _REFERS.match(asked.strip()):
        return replies.follow_up
    return call or replies.nothing


def _question(asked: str) -> str:
    """The message without a greeting at its beginning and punctuation at its end."""
    return _COURTESY.sub("", asked.strip(), count=1).strip(_END)


def _skill_list(skills: Sequence[tuple[str, str]], replies: _Replies) -> str:
    if not skills:
        return replies.no_skills
    lines = [f"- {name}: {description[:MAX_LISTED_CHARACTERS]}" for name, description in skills[:MAX_LISTED_SKILLS]]
    return "\n".join([replies.skills, *lines, replies.more_skills])


def _first_call(asked: str, offered: set[str]) -> Json | None:
    if "file_read" in offered and (file := _FILE.search(asked)):
        return _call("file_read", {"path": file[1]})
    if "calculate" in offered and (found := _arithmetic(asked)):
        return _call("calculate", {"expression": found})
    if "list_files" in offered and _LIST.search(asked):
        return _call("list_files", {})
    if "datetime" in offered and (moment := _moment_asked(asked)) is not None:
        return _call("datetime", moment)
    if "search_skills" in offered and asked.strip():
        return _call("search_skills", {"query": asked})
    return None


def _arithmetic(asked: str) -> str | None:
    """The expression in a question; the longest, if there are several."""
    asked = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), asked)
    asked = _CHINESE_PERCENT.sub(lambda share: f" {_western(share[1])}%", asked)
    if share := _PERCENT_OF.search(asked):
        return f"{share[2]} * {share[1]}%"
    if share := _OF_PERCENT.search(asked):
        return f"{share[1]} * {share[2]}%"
    if root := _ROOT_OF.search(asked):
        is_square = root[1].lower() == "square" if root[1] else root[4] == "平方"
        return f"{'sqrt' if is_square else 'cbrt'}({root[2] or root[3]})"
    written = _SPOKEN_OPERATOR.sub(lambda found: f" {_SPOKEN[found[1].lower()]} ", _ISO_DATE.sub(" ", asked))
    found = [match[0].strip(" \t\n,.").lstrip("*/^%!)") for match in _ARITHMETIC.finditer(written)]
    return max((text for text in found if _OPERATION.search(text)), key=len, default=None)


def _western(number: str) -> str:
    """A number up to 999 in Arabic numerals; `十五` is 15."""
    if number[0].isascii():
        return number
    total = digit = 0
    for character in number:
        if character in "十百":
            total += (digit or 1) * (10 if character == "十" else 100)
            digit = 0
        else:
            digit = _CHINESE_DIGITS[character]
    return str(total + digit)


def _moment_asked(asked: str) -> Json | None:
    """The arguments of `datetime` for a question about a date or the time; None if it asks for something else."""
    question = _question(asked)
    zone = _ZONE_NAME.search(question)
    words = question[: zone.start()] if zone else question
    day = _OTHER_DAY.search(words)
    words = _OTHER_DAY.sub(" ", words, count=1)
    if not _DATE_SUBJECT.search(words) or not (_DATE_QUESTION.fullmatch(words) or _CHINESE_DATE.fullmatch(words)):
        return None
    return ({"value": day[0].lower()} if day else {}) | ({"zone": zone[1]} if zone else {})


def _after(done: list[_Done], asked: str, offered: set[str], replies: _Replies, *, is_later: bool) -> Json | str | None:
    """What follows the last result: another call, or its text for people."""
    last = done[-1]
    if last.result.startswith("Error"):
        return f"{replies.failed}{last.result}"
    if last.name == "search_skills":
        return _use_of_a_skill(asked, last.result, offered, replies, is_later=is_later)
    if last.name == "calculate":
        return f"{_argument(last, 'expression')} = {last.result.strip()}"
    if last.name == "datetime":
        return _moment(last.result, day=_argument(last, "value"), is_chinese=replies is _CHINESE)
    if last.name == "load_skill":
        description = next((hit[3] for hit in _HIT.findall(done[-2].result)), "") if len(done) > 1 else ""
        return _skill_text(_argument(last, "name"), description, last.result.strip())
    return _MARK.sub("", last.result).strip()


def _use_of_a_skill(asked: str, results: str, offered: set[str], replies: _Replies, *, is_later: bool) -> Json | str:
    """Run the best skill if its input can be filled in; load a skill that has only instructions."""
    hits = _HIT.findall(results)
    if is_later and (not hits or float(hits[0][1]) < FOLLOW_UP_SCORE):
        return replies.follow_up
    if not hits:
        return replies.no_skill
    name, score, kind, description, arguments = hits[0]
    if float(score) < GOOD_SCORE:
        names = "\n".join(f"- {hit[0]}: {hit[3]}" for hit in hits)
        return f"{replies.candidates}\n{names}"
    if kind == "instructions":
        return _call("load_skill", {"name": name}) if "load_skill" in offered else f"{name}: {description}"
    filled = _filled(asked, arguments)
    if filled is None or "run_skill" not in offered:
        return f"The skill {name} fits ({description}) and needs: {arguments}. Run it with: apex skills run {name}"
    return _call("run_skill", {"name": name, "input": filled})


def _filled(asked: str, arguments: str) -> Json | None:
    """The question as the input of a skill that needs at most one text; None if it needs more."""
    required = [argument.strip() for argument in arguments.split(",") if argument.strip() and "?:" not in argument]
    if not required:
        return {"text": asked, "query": asked}
    name, _, kind = required[0].partition(":")
    return {name: asked} if len(required) == 1 and kind.strip() == "string" else None


def _moment(result: str, *, day: str, is_chinese: bool) -> str:
    """The result of the tool `datetime` as a sentence: a named day, or the time now with its zone."""
    try:
        data = json.loads(result)
        moment, zone = datetime.fromisoformat(data["iso"]), str(data["zone"])
    except (ValueError, KeyError, TypeError):
        return result.strip()
    if is_chinese:
        date = f"{moment.year}年{moment.month}月{moment.day}日，星期{_WEEKDAYS[moment.weekday()]}"
        return f"{day}是{date}。" if day else f"现在是{date}，{moment:%H:%M}（{zone}）。"
    date = f"{moment:%A}, {moment.day} {moment:%B %Y}"
    return f"{day.capitalize()}: {date}." if day else f"It is {date}, {moment:%H:%M} {zone}."


def _skill_text(name: str, description: str, instructions: str) -> str:
    """The instructions of a skill if they are short; otherwise what it is about, and where to read it."""
    if len(instructions) <= SHORT_SKILL_CHARACTERS:
        return instructions
    headings = "\n".join(f"- {heading.strip()}" for heading in _HEADING.findall(instructions)[:MAX_HEADINGS])
    size = f"Its instructions have {len(instructions.splitlines()):,} lines, which a language model would follow."
    where = f"Read them with: apex skills show {name}, or at /api/skills/{quote(name, safe='')}/files/SKILL.md"
    parts = [f"The skill {name} fits: {description}" if description else f"The skill {name}:", headings, size, where]
    return "\n\n".join(part for part in parts if part)


# -------------------------------------------------------------------------------------------------------- calls
def _required_call(choice: Any, asked: str, offered: Json) -> Json:
    """The call that `tool_choice` demands. Raises BadRequestError if its arguments cannot be filled in."""
    named = _named(choice)
    if named is not None and named not in offered:
        raise BadRequestError(f"'tool_choice' names {named[:64]!r}, which is not in 'tools'.", param="tool_choice")
    names = [named] if named else list(offered)
    if (call := _first_call(asked, set(names))) is not None:
        return call
    for name in names:
        if (arguments := _arguments(offered[name], asked)) is not None:
            return _call(name, arguments)
    raise BadRequestError(
        f"'tool_choice' demands a call of {' or '.join(name[:64] for name in names[:5]) or 'a tool'}, and apex-offline "
        "can fill in only one text. Connect a model with APEX_LLM_BASE_URL, or use tool_choice auto.",
        param="tool_choice",
    )


def _arguments(schema: Any, asked: str) -> Json | None:
    """The question as the arguments of a function; None if it needs more than one text."""
    required = schema.get("required") or [] if isinstance(schema, dict) else []
    if not isinstance(required, list) or not required:
        return {}
    properties = schema.get("properties")
    own = properties.get(required[0]) if isinstance(properties, dict) and isinstance(required[0], str) else None
    return (
        {required[0]: asked} if len(required) == 1 and isinstance(own, dict) and own.get("type") == "string" else None
    )


def _named(choice: Any) -> str | None:
    """The function that `tool_choice` names; None if it names none."""
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _since_the_question(messages: list[Json]) -> list[_Done]:
    """The calls since the last question."""
    calls: dict[str, Json] = {}
    done: list[_Done] = []
    for message in messages:
        if message["role"] == "user":
            done = []
        calls |= {call["id"]: call.get("function", {}) for call in message.get("tool_calls") or ()}
        if message["role"] == "tool":
            function = calls.get(message["tool_call_id"], {})
            result = text_of(message.get("content"))
            done.append(_Done(function.get("name", ""), function.get("arguments", ""), result))
    return done


def _argument(call: _Done, name: str) -> str:
    try:
        return str(json.loads(call.arguments).get(name, ""))
    except (ValueError, AttributeError):
        return ""


def _call(name: str, arguments: Json) -> Json:
    written = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": written}}

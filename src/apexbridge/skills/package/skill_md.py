"""Reads SKILL.md by one of three profiles.

`seed` enforces exactly the requirements and `strict` the open Agent Skills specification. `lenient` repairs what it
can, with a warning for each repair.
"""

from collections.abc import Callable
from typing import Any

from apexbridge.skills import MAX_DESCRIPTION_CHARACTERS, MAX_SKILL_FILE_BYTES, SKILL_FILE, Mode, Profile
from apexbridge.skills.package.frontmatter import Document, parse, parse_leniently
from apexbridge.skills.package.parameters import declared_schema
from apexbridge.skills.package.permissions import canonical, permission_problem
from apexbridge.skills.package.skill import Diagnostic, Reading, SkillMetadata, lenient_name, name_problem
from apexbridge.skills.package.yaml_block import FrontmatterError

MAX_COMPATIBILITY_CHARACTERS = 500
MAX_CONFIRM_CHARACTERS = 500
_OPEN_SPECIFICATION_KEYS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_YES = {True, "true", "yes", "on"}
_NO = {False, "false", "no", "off"}


def read_skill_markdown(data: bytes, *, folder: str, profile: Profile, long_description: bool = False) -> Reading:
    """Parse the bytes of a SKILL.md; `folder` is the name of its folder, empty if that may be any.

    With `long_description`, the profile `seed` accepts a description above the limit with a warning.
    """
    return _Reader(folder, profile, long_description).read(data)


class _Reader:
    """Collects all findings about one file, so that its author can fix them in one round."""

    def __init__(self, folder: str, profile: Profile, long_description: bool) -> None:
        self.folder = folder
        self.profile = profile
        self.long_description = long_description
        self.errors: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []

    # ------------------------------------------------------------------------------------------- the whole file
    def read(self, data: bytes) -> Reading:
        if len(data) > MAX_SKILL_FILE_BYTES:
            self.errors.append(Diagnostic(message=f"{SKILL_FILE} is larger than 1 MB"))
            return self.finish(None, "")
        document = self.parse(self.decode(data))
        if document is None:
            return self.finish(None, "")
        self.document = document
        name, description = self.name_and_description()
        metadata = self.interpret(name, description)
        if self.profile == "strict":
            self.check_open_specification()
        return self.finish(None if self.errors else metadata, document.body)

    def finish(self, metadata: SkillMetadata | None, body: str) -> Reading:
        return Reading(metadata=metadata, body=body, errors=tuple(self.errors), warnings=tuple(self.warnings))

    def decode(self, data: bytes) -> str:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.errors.append(Diagnostic(message="is not UTF-8 text: save the file as UTF-8", line=line))
            text = data.decode("utf-8", "replace")
        if text.startswith("\ufeff"):
            say = self.complain if self.profile == "strict" else self.warn
            say("the file begins with a byte order mark: save it as UTF-8 without BOM", 1)
        return text

    def parse(self, text: str) -> Document | None:
        try:
            document = parse_leniently(text) if self.profile == "lenient" else parse(text)
        except FrontmatterError as error:
            self.errors.append(Diagnostic(message=error.message, line=error.line))
            return None
        for notice in document.notices:
            self.warn(notice.message, notice.line)
        if document.block_start is None:
            self.warn("there is no frontmatter; name and description were taken from the folder and the text", 1)
        return document

    # ------------------------------------------------------------------------------------- name and description
    def name_and_description(self) -> tuple[str, str]:
        name, description = self.text("name"), self.text("description")
        if self.profile == "lenient":
            return self.lenient_name(name), self.lenient_description(description)
        missing = [key for key, value in (("name", name), ("description", description)) if not value]
        if missing:
            self.errors.append(Diagnostic(message=f"Missing required fields: {', '.join(missing)}"))
        if name:
            if problem := name_problem(name, strict=self.profile == "strict"):
                self.complain(problem, self.line("name"))
            if self.folder and name != self.folder:
                message = f'Skill name mismatch: expected "{self.folder}", got "{name}"'
                self.errors.append(Diagnostic(message=message))
        if description and len(description) > MAX_DESCRIPTION_CHARACTERS:
            long = f"description has {len(description)} characters; at most {MAX_DESCRIPTION_CHARACTERS} are allowed"
            say = self.warn if self.long_description and self.profile == "seed" else self.complain
            say(long, self.line("description"))
        return name or "", description or ""

    def lenient_name(self, written: str | None) -> str:
        name = lenient_name(written or "", self.folder)
        if problem := name_problem(name):  # a slug is always well-formed, but it may be reserved
            self.errors.append(Diagnostic(message=problem, line=self.line("name")))
        if written and name != written:
            self.warn(f'name "{written}" was made "{name}"', self.line("name"))
        elif written and self.folder and written != self.folder:
            self.warn(f'name "{written}" differs from its folder "{self.folder}"', self.line("name"))
        return name

    def lenient_description(self, written: str | None) -> str:
        if written and self.is_open_collection("description"):
            message = "description: a bracket that is not closed; put the text in quotes"
            self.errors.append(Diagnostic(message=message, line=self.line("description")))
        elif written and len(written) > MAX_DESCRIPTION_CHARACTERS:
            self.warn(f"description is longer than {MAX_DESCRIPTION_CHARACTERS} characters", self.line("description"))
        if written:
            return written
        if not self.document.is_sound:
            self.errors.append(Diagnostic(message="the frontmatter is broken and has no description that can be read"))
            return ""
        derived = _first_heading_and_paragraph(self.document.body)
        if not derived:
            self.errors.append(Diagnostic(message="Missing required fields: description (and no text to take it from)"))
        elif self.document.block_start is not None:
            self.warn("description is missing; it was taken from the first heading and paragraph")
        return derived

    def is_open_collection(self, key: str) -> bool:
        """Whether a value is a list or a mapping without an end; text such as `[beta] merges files: fast` is not."""
        field = self.document.fields[key]
        written = self.document.text[field.start : field.end]
        return (written.startswith("[") and "]" not in written) or (written.startswith("{") and "}" not in written)

    # ---------------------------------------------------------------------------------------------- other fields
    def interpret(self, name: str, description: str) -> SkillMetadata:
        return SkillMetadata(
            name=name,
            description=description,
            version=self.text("version"),
            author=self.text("author"),
            category=self.text("category"),
            license=self.text("license"),
            compatibility=self.text("compatibility"),
            tags=self.words("tags"),
            allowed_tools=self.tools(),
            permissions=self.permissions(),
            mode=self.mode(),
            entrypoint=self.entrypoint(),
            timeout_ms=self.timeout(),
            dangerous=self.flag("dangerous", when_unclear=True),
            confirm=self.confirm(),
            disable_model_invocation=self.flag("disable-model-invocation", when_unclear=False),
            user_invocable=self.flag("user-invocable", when_unclear=True, when_missing=True),
            parameters=self.parameters(),
            metadata=self.mapping("metadata"),
        )

    def mode(self) -> Mode | None:
        mode = self.apex_text("mode")
        if mode is None or mode in ("sandbox", "direct"):
            return mode  # type: ignore[return-value]  # narrowed by the line above
        self.complain(f'mode "{mode}" is unknown; write sandbox or direct', self.line("mode"))
        return None

    def confirm(self) -> str | None:
        """The approval question on one line: line breaks could imitate other parts of the prompt."""
        question = self.apex_text("confirm")
        if question is None:
            return None
        if len(question) > MAX_CONFIRM_CHARACTERS:
            self.warn(f"confirm is cut to {MAX_CONFIRM_CHARACTERS} characters", self.line("confirm"))
        return " ".join(question[:MAX_CONFIRM_CHARACTERS].split())

    def timeout(self) -> int | None:
        value = self.apex("timeout")
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.complain("timeout must be a whole number of milliseconds above 0", self.line("timeout"))
        return None

    def flag(self, key: str, *, when_unclear: bool, when_missing: bool = False) -> bool:
        value = self.apex(key)
        if value is None:
            return when_missing
        value = value.lower() if isinstance(value, str) else value
        if isinstance(value, (str, int)):
            if value in _YES:
                return True
            if value in _NO:
                return False
        self.complain(f"{key} must be true or false", self.line(key))
        return when_unclear

    def entrypoint(self) -> str | None:
        value = self.apex_section().get("entrypoint")
        if value is None or isinstance(value, str):
            return value.removeprefix("./") if value else None
        self.complain("metadata.apex.entrypoint must be the path of a file", self.line("metadata"))
        return None

    def parameters(self) -> dict[str, Any] | None:
        for value in (self.apex("parameters"), self.document.value("input_schema")):
            schema, warnings = declared_schema(value)
            for warning in warnings:
                self.warn(warning, self.line("parameters"))
            if schema is not None:
                return schema
        return None

    def permissions(self) -> tuple[str, ...]:
        requested = self.words("permissions")
        for permission in requested:
            if problem := permission_problem(permission):
                self.warn(problem, self.line("permissions"))
        return tuple(dict.fromkeys(map(canonical, requested)))

    def tools(self) -> tuple[str, ...]:
        value = self.document.value("allowed-tools")
        if isinstance(value, str):
            return tuple(_split_outside_brackets(value))
        return self.words("allowed-tools")

    # ---------------------------------------------------------------------------------------------- field access
    def text(self, key: str) -> str | None:
        """A field as text: the original spelling of a scalar, so that `1.10` keeps its zero."""
        field = self.document.fields.get(key)
        if field is None or field.value is None:
            return None
        if field.raw is not None:
            return field.raw.strip() or None
        if self.profile == "strict" or (self.profile == "seed" and key in ("name", "description")):
            self.complain(f"{key} must be text", field.line)
            return None
        self.warn(f"{key} should be text", field.line)
        parts = (
            field.value if isinstance(field.value, list) else [f"{key}: {value}" for key, value in field.value.items()]
        )
        return ", ".join(str(fragment) for fragment in parts) or None

    def words(self, key: str) -> tuple[str, ...]:
        """A list of words, written as a list or as a comma-separated string."""
        value = self.apex(key)
        if value is None:
            return ()
        if isinstance(value, str):
            value = value.strip("[] \t").split(",")
        if not isinstance(value, list) or any(isinstance(item, (dict, list)) for item in value):
            self.complain(f"{key} must be a list of words", self.line(key))
            return ()
        return tuple(dict.fromkeys(word for item in value if item is not None and (word := str(item).strip())))

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.document.value(key)
        if value is None or isinstance(value, dict):
            return value or {}
        say = self.complain if self.profile == "strict" else self.warn
        say(f"{key} must be a mapping", self.line(key))
        return {}

    def apex_section(self) -> dict[str, Any]:
        metadata = self.document.value("metadata")
        section = metadata.get("apex") if isinstance(metadata, dict) else None
        return section if isinstance(section, dict) else {}

    def apex(self, key: str) -> Any:
        """An apexbridge field: from the top level, else from `metadata.apex`."""
        value = self.document.value(key)
        return self.apex_section().get(key) if value is None else value

    def apex_text(self, key: str) -> str | None:
        value = self.apex(key)
        return None if value is None else str(value).strip() or None

    def line(self, key: str) -> int | None:
        field = self.document.fields.get(key)
        return field.line if field else None

    def warn(self, message: str, line: int | None = None) -> None:
        self.warnings.append(Diagnostic(message=message, line=line))

    def complain(self, message: str, line: int | None = None) -> None:
        """Add an error, or a warning if the profile is `lenient`."""
        findings = self.warnings if self.profile == "lenient" else self.errors
        findings.append(Diagnostic(message=message, line=line))

    # ------------------------------------------------------------------------------------ the open specification
    def check_open_specification(self) -> None:
        fields = self.document.fields
        for key in sorted(set(fields) - _OPEN_SPECIFICATION_KEYS):
            self.complain(f'the field "{key}" is not part of the open specification', fields[key].line)
        compatibility = self.document.value("compatibility")
        if isinstance(compatibility, str) and len(compatibility) > MAX_COMPATIBILITY_CHARACTERS:
            self.complain(
                f"compatibility is longer than {MAX_COMPATIBILITY_CHARACTERS} characters", self.line("compatibility")
            )
        if not isinstance(self.document.value("allowed-tools"), (str, type(None))):
            self.complain("allowed-tools must be a space-separated string", self.line("allowed-tools"))
        metadata = self.document.value("metadata")
        if isinstance(metadata, dict) and not all(isinstance(value, str) for value in metadata.values()):
            self.complain("metadata must map text to text", self.line("metadata"))


def _split_outside_brackets(text: str) -> list[str]:
    """Split `Read, Bash(git add:*)` or `Read Bash(git add:*)`: at commas if there are any, else at spaces."""

    def split(is_separator: Callable[[str], bool]) -> list[str]:
        parts, start, depth = [], 0, 0
        for position, character in enumerate(text):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth <= 0 and is_separator(character):
                parts.append(text[start:position].strip())
                start = position + 1
        parts.append(text[start:].strip())
        return [fragment for fragment in parts if fragment]

    parts = split(lambda character: character == ",")
    return parts if len(parts) > 1 else split(str.isspace)


def _first_heading_and_paragraph(body: str) -> str:
    """The fallback description for a file that declares none."""
    heading = ""
    paragraph: list[str] = []
    for line in body.lstrip("\ufeff").splitlines():
        words = line.strip()
        if words.startswith("#") and not heading and not paragraph:
            heading = words.lstrip("# ").strip()
        elif words and not words.startswith(("#", "---", "```", "|", "<!--")):
            paragraph.append(words.lstrip(">* -").strip())
        elif paragraph:
            break
    text = ". ".join(fragment for fragment in (heading.rstrip("."), " ".join(paragraph)) if fragment)
    return text[:MAX_DESCRIPTION_CHARACTERS].strip()

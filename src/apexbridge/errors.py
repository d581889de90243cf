"""The complete error tree: a code for programs, a status for HTTP, a message for people, details for both.

ApexBridgeError
├── SkillError                   about a skill; details name it; also SIGNATURE_REQUIRED, SCAN_REFUSED, …
│   ├── SkillNotFoundError           SKILL_NOT_FOUND (executing: ENOENT)
│   ├── SkillAlreadyExistsError      SKILL_ALREADY_EXISTS
│   ├── SkillParseError              SKILL_PARSE_ERROR
│   ├── InvalidSkillStructureError   INVALID_SKILL_STRUCTURE
│   ├── InvalidArchiveError          INVALID_ZIP, UNSAFE_PATH, UNSAFE_ENTRY, ARCHIVE_TOO_LARGE
│   ├── FieldNotEditableError        FIELD_NOT_EDITABLE
│   ├── SkillReadOnlyError           SKILL_READ_ONLY
│   ├── SkillDisabledError           TOOL_DISABLED
│   ├── DirectModeDisabledError      DIRECT_MODE_DISABLED
│   ├── SkillPermissionError         EACCES
│   ├── SkillExecutionError          EXECUTION_ERROR; `details.cause` is EXIT_NONZERO or similar
│   └── SkillTimeoutError            TIMEOUT
├── ToolError                    about a tool; also CONFIRMATION_REQUIRED, APPROVAL_INVALID, MCP_UNAVAILABLE
│   ├── ToolNotFoundError            TOOL_NOT_FOUND
│   ├── InvalidInputError            INVALID_INPUT
│   │   └── InvalidSchemaError           a schema that cannot be used
│   ├── ToolDisabledError            TOOL_DISABLED
│   ├── PermissionDeniedError        PERMISSION_DENIED
│   └── ToolExecutionError           TOOL_EXECUTION_ERROR
├── RequestError                 the request itself: NOT_FOUND, METHOD_NOT_ALLOWED, PAYLOAD_TOO_LARGE, …
│   └── BadRequestError              a chat request, with OpenAI's status and code (agent/request.py)
└── ServerError                  the server's own state: INTERNAL_ERROR, NOT_READY, STORAGE_FULL, …
    ├── BackupError                  BACKUP_INVALID (backup/archive.py)
    └── UpstreamError                UPSTREAM_ERROR, with the model server's status and body (llm/upstream_errors.py)
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

STATUS_OF_CODE: Mapping[str, int] = {
    "INVALID_SKILL_STRUCTURE": 400,
    "INVALID_ZIP": 400,
    "UNSAFE_PATH": 400,
    "UNSAFE_ENTRY": 400,
    "SKILL_PARSE_ERROR": 400,
    "FIELD_NOT_EDITABLE": 400,
    "NAME_MISMATCH": 400,
    "VERSION_IN_USE": 400,
    "BACKUP_INVALID": 400,
    "UNAUTHORIZED": 401,
    "PERMISSION_DENIED": 403,
    "EACCES": 403,
    "FORBIDDEN": 403,
    "APPROVAL_INVALID": 403,
    "ADDRESS_REFUSED": 403,
    "SKILL_NOT_FOUND": 404,
    "ENOENT": 404,
    "PLUGIN_NOT_FOUND": 404,
    "VERSION_NOT_FOUND": 404,
    "TOOL_NOT_FOUND": 404,
    "FILE_NOT_FOUND": 404,
    "UPLOAD_NOT_FOUND": 404,
    "EXECUTION_NOT_FOUND": 404,
    "WORKSPACE_NOT_FOUND": 404,
    "APPROVAL_NOT_FOUND": 404,
    "CHAT_NOT_FOUND": 404,
    "RESPONSE_NOT_FOUND": 404,
    "DATA_DIR_NOT_FOUND": 404,
    "SOURCE_NOT_FOUND": 404,
    "MCP_SERVER_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "REQUEST_TIMEOUT": 408,
    "SIGNATURE_REQUIRED": 409,
    "SCAN_REFUSED": 409,
    "SKILL_ALREADY_EXISTS": 409,
    "SKILL_READ_ONLY": 409,
    "CONFIRMATION_REQUIRED": 409,
    "TOOL_DISABLED": 409,
    "DIRECT_MODE_DISABLED": 409,
    "SOURCE_UNKNOWN": 409,
    "SOURCE_CHANGED": 409,
    "NAME_TAKEN": 409,
    "SIGNER_EXISTS": 409,
    "MCP_SERVER_EXISTS": 409,
    "MCP_SERVER_READ_ONLY": 409,
    "BUSY": 409,
    "ADDRESS_IN_USE": 409,
    "DATA_DIR_IN_USE": 409,
    "DATA_DIR_NOT_EMPTY": 409,
    "FILE_EXISTS": 409,
    "NEWER_VERSION": 409,
    "ARCHIVE_TOO_LARGE": 413,
    "RANGE_NOT_SATISFIABLE": 416,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "INVALID_INPUT": 422,
    "RATE_LIMITED": 429,
    "QUEUE_FULL": 429,
    "HEADERS_TOO_LARGE": 431,
    "INTERNAL_ERROR": 500,
    "INVALID_SETTING": 500,
    "MIGRATION_FAILED": 500,
    "TOOL_EXECUTION_ERROR": 500,
    "EXECUTION_ERROR": 500,
    "TIMEOUT": 500,
    "UPSTREAM_ERROR": 502,
    "SOURCE_UNREACHABLE": 502,
    "DIGEST_MISMATCH": 502,
    "SANDBOX_UNAVAILABLE": 503,
    "MCP_NOT_INSTALLED": 503,
    "SIGNING_NOT_INSTALLED": 503,
    "MCP_UNAVAILABLE": 503,
    "LANCE_SEARCH_ERROR": 503,
    "NOT_READY": 503,
    "STORAGE_FULL": 507,
}
"""Every error code and its HTTP status."""
RETRYABLE_CODES = frozenset(
    {
        "BUSY",
        "SOURCE_UNREACHABLE",
        "REQUEST_TIMEOUT",
        "RATE_LIMITED",
        "QUEUE_FULL",
        "TIMEOUT",
        "SANDBOX_UNAVAILABLE",
        "MCP_UNAVAILABLE",
        "LANCE_SEARCH_ERROR",
        "NOT_READY",
        "STORAGE_FULL",
    }
)
"""Codes for which the same call may succeed later. For all other codes the call has to change."""


class ApexBridgeError(Exception):
    """Base class of all errors that apexbridge raises on purpose."""

    name: ClassVar[str] = "ServerError"
    """The error family: the `name` in the error's JSON."""
    default_code: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details: dict[str, Any] = {key: value for key, value in details.items() if value is not None}
        if self.is_retryable:
            self.details.setdefault("retryable", True)

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return STATUS_OF_CODE[self.code]

    @property
    def is_retryable(self) -> bool:
        """Whether retrying the same call can help."""
        return self.code in RETRYABLE_CODES

    def to_json(self) -> dict[str, Any]:
        """The error as JSON, the same at every entry point."""
        return {
            "success": False,
            "name": self.name,
            "code": self.code,
            "message": self.message,
            "details": self.details,
        }


class SkillError(ApexBridgeError):
    """An error about a skill; `details.skillName` is its name, if known."""

    name = "SkillError"

    def __init__(self, message: str, *, skill: str | None = None, code: str | None = None, **details: Any) -> None:
        super().__init__(message, code=code, skillName=skill, **details)


class SkillNotFoundError(SkillError):
    """No skill of that name is installed."""

    default_code = "SKILL_NOT_FOUND"

    def __init__(self, name: str, *, code: str | None = None, near: Sequence[str] = ()) -> None:
        """`near` are similar names that exist."""
        message = f"Skills not found: {name}{did_you_mean(near)}"
        super().__init__(message, skill=name, code=code, suggestions=list(near) or None)


class SkillAlreadyExistsError(SkillError):
    """A skill of that name is installed and the caller did not ask to replace it."""

    default_code = "SKILL_ALREADY_EXISTS"

    def __init__(self, name: str, *, kind: str = "Skill", remedy: str = "Use overwrite:true to replace.") -> None:
        super().__init__(f"{kind} {name} already exists. {remedy}", skill=name)


class SkillParseError(SkillError):
    """A SKILL.md cannot be read; `details.line` is the line."""

    default_code = "SKILL_PARSE_ERROR"


class InvalidSkillStructureError(SkillError):
    """A package is not a skill; `details.errors` lists every reason."""

    default_code = "INVALID_SKILL_STRUCTURE"

    def __init__(
        self, errors: list[str], *, skill: str | None = None, message: str | None = None, **details: Any
    ) -> None:
        text = message or f"Invalid skill structure: {'; '.join(errors)}"
        super().__init__(text, skill=skill, errors=errors, **details)


class InvalidArchiveError(SkillError):
    """An archive breaks the ZIP policy; `details.entry` names the entry."""

    default_code = "INVALID_ZIP"


MAX_SHOWN_FIELDS = 20
MAX_SHOWN_CHARACTERS = 100


class FieldNotEditableError(SkillError):
    """Only a skill's description may be changed in place."""

    default_code = "FIELD_NOT_EDITABLE"

    def __init__(self, fields: list[str], *, skill: str | None = None) -> None:
        shown = [field[:MAX_SHOWN_CHARACTERS] for field in fields[:MAX_SHOWN_FIELDS]]
        super().__init__("Only description field can be modified", skill=skill, fields=shown)


class SkillReadOnlyError(SkillError):
    """The skill is in a read-only root."""

    default_code = "SKILL_READ_ONLY"


class SkillDisabledError(SkillError):
    """The operator disabled this skill."""

    default_code = "TOOL_DISABLED"


class DirectModeDisabledError(SkillError):
    """The operator disabled direct mode."""

    default_code = "DIRECT_MODE_DISABLED"


class SkillPermissionError(SkillError):
    """A file of the skill cannot be read."""

    default_code = "EACCES"


class SkillExecutionError(SkillError):
    """A run failed."""

    default_code = "EXECUTION_ERROR"


class SkillTimeoutError(SkillExecutionError):
    """A run exceeded its time limit."""

    default_code = "TIMEOUT"


class ToolError(ApexBridgeError):
    """An error about a tool; `details.retryable` says whether retrying the same call can help."""

    name = "ToolError"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message, code=code, **details)
        self.details.setdefault("retryable", False)


class ToolNotFoundError(ToolError):
    """No tool with that id is registered."""

    default_code = "TOOL_NOT_FOUND"


class InvalidInputError(ToolError):
    """The input is invalid; `details.errors` lists the path and message of each problem."""

    name = "RequestError"
    default_code = "INVALID_INPUT"


class InvalidSchemaError(InvalidInputError):
    """A JSON Schema cannot be used for a tool's parameters."""


class ToolDisabledError(ToolError):
    """The tool is disabled."""

    default_code = "TOOL_DISABLED"


class PermissionDeniedError(ToolError):
    """The caller may not do this."""

    default_code = "PERMISSION_DENIED"


class ToolExecutionError(ToolError):
    """The tool itself failed."""

    default_code = "TOOL_EXECUTION_ERROR"


class RequestError(ApexBridgeError):
    """The request asks for something that does not exist or is not allowed."""

    name = "RequestError"
    default_code = "NOT_FOUND"


class ServerError(ApexBridgeError):
    """The server's own state prevents the request."""

    name = "ServerError"


def did_you_mean(near: Sequence[str]) -> str:
    """The end of a message about an unknown name: a question with similar names, empty without any."""
    quoted = [f'"{name}"' for name in near]
    return f". Did you mean {' or '.join(quoted)}?" if quoted else ""

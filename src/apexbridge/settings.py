"""Settings, in order of precedence: flags, the environment (`APEX_…`), `apex.toml`, defaults."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from apexbridge.agent.budget import ChatLimits
from apexbridge.agent.config import ChatSettings, Recording
from apexbridge.errors import ServerError
from apexbridge.llm.config import LLMSettings, ToolMode, Upstream, UpstreamApi
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.retrieval.config import (
    DEFAULT_LIMIT,
    DEFAULT_RERANKER_SECONDS,
    DEFAULT_THRESHOLD,
    MAX_LIMIT,
    EmbeddingKind,
    RetrievalSettings,
)
from apexbridge.sandbox.config import (
    GUARANTEES,
    MB,
    BackendChoice,
    Guarantee,
    SandboxLimits,
    SandboxSettings,
    default_concurrency,
)
from apexbridge.skills import DefaultMode, Profile, ScanPolicy, Severity, SignaturePolicy
from apexbridge.skills.config import FetchSettings, IntakeSettings, SkillsSettings, VersionLimits
from apexbridge.storage.directory import SETTINGS_FILE as SETTINGS_FILE  # re-exported
from apexbridge.storage.directory import default_data_dir
from apexbridge.workspaces.config import WorkspaceLimits


class UpstreamSettings(BaseModel):
    """One `[[llm]]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    base_url: str
    api_key_env: str | None = None
    """The variable that holds the key; keys must not be in files."""
    models: tuple[str, ...] = ()
    tool_mode: ToolMode = "auto"
    apis: tuple[UpstreamApi, ...] = Field(default=("chat",), min_length=1)
    """The APIs that it speaks. Requests pass through to those that are not chat completions."""

    def upstream(self) -> Upstream:
        return Upstream(
            name=self.name,
            base_url=self.base_url,
            api_key=os.environ.get(self.api_key_env) if self.api_key_env else None,
            models=self.models,
            tool_mode=self.tool_mode,
            apis=self.apis,
        )


Origin = Literal["flag", "environment", "apex.toml", "default"]
KeysRequired = Literal["auto", "true", "false"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S*")
_TRUTH = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}


class _Environment(EnvSettingsSource):
    def __call__(self) -> dict[str, Any]:
        """The values of the environment. An empty `APEX_DATA_DIR` would be the current folder; it counts as unset."""
        return {name: value for name, value in super().__call__().items() if (name, value) != ("data_dir", "")}


class Settings(BaseSettings):
    """Everything an operator can set. Each package gets its own settings from it."""

    model_config = SettingsConfigDict(env_prefix="APEX_", toml_file=SETTINGS_FILE, extra="forbid", frozen=True)

    data_dir: Path = Field(
        default_factory=default_data_dir, description="Folder of the skills and of everything known about them."
    )
    host: str = Field(
        default="127.0.0.1", description="Address the server binds to; others than loopback need an API key."
    )
    port: int = Field(default=8420, ge=0, le=65535, description="Port the server binds to; 0 takes a free one.")
    url: str | None = Field(default=None, description="Address of a running server that commands should talk to.")
    api_key: SecretStr | None = Field(default=None, description="API key with which commands talk to a server.")
    log_format: LogFormat = Field(default="text", description="How `apex serve` logs: text, or json.")
    log_level: LogLevel = Field(
        default="info",
        description="The least level that `apex serve` logs: debug, info, warning or error.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Address of a collector that gets traces by OTLP over HTTP, without `/v1/traces`.",
    )
    access_log: bool = Field(default=True, description="Whether `apex serve` logs every request.")
    api_keys_required: KeysRequired = Field(
        default="auto", description="Whether clients need an API key: true, false, or auto, unless bound to loopback."
    )
    rate_limit: int = Field(
        default=600,
        ge=0,
        le=1_000_000,
        description="Requests that each API key may make in a minute; 0 disables the limit.",
    )
    key_quota_mb: int = Field(
        default=1024,
        ge=0,
        le=1_000_000_000,
        description="Disk that each API key may use for its workspace, runs and uploads; 0 disables the limit.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Names by which clients may call this server, separated by commas."
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Sites whose pages may send requests, separated by commas."
    )
    skill_roots: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(), description="Extra folders of skills, separated by `:`; scanned in order, installed skills win."
    )
    default_mode: DefaultMode = Field(
        default="auto", description="Mode of skills that declare none: auto, sandbox or direct."
    )
    enable_direct_mode: bool = Field(default=True, description="Whether direct skills may return their instructions.")
    default_profile: Profile = Field(default="seed", description="How archives are read: seed, lenient or strict.")
    require_entry_script: bool = Field(default=False, description="Refuse packages whose scripts/ has no entry script.")
    scan: ScanPolicy = Field(
        default="warn",
        description="What a suspicious text or file in a package does to its install: off, warn, refuse.",
    )
    scan_severity: Severity = Field(
        default="high", description="The lowest severity that `refuse` refuses: low, medium or high."
    )
    require_signed: SignaturePolicy = Field(
        default="off",
        description="Skills without a valid signature of a trusted signer: off, warn, or all, which refuses them.",
    )
    confirm_dangerous: bool = Field(default=True, description="Whether dangerous skills need approval to run.")
    install_private_addresses: bool = Field(
        default=False, description="Whether skills may be installed from private addresses, and without TLS."
    )
    install_max_mb: int = Field(default=200, ge=1, le=10_000, description="Download limit of one install.")
    install_timeout_seconds: int = Field(default=120, ge=1, le=3600, description="Time limit of one download.")
    publish_skills: bool = Field(
        default=False,
        description="Whether anyone may list and download the skills at `/.well-known/agent-skills`, without a key.",
    )
    version_count: int = Field(
        default=50, ge=1, le=10_000, description="Versions of a skill that are kept; the oldest are deleted first."
    )
    version_days: int = Field(
        default=365, ge=0, le=36_500, description="How long versions of a skill are kept; 0 for any age."
    )
    version_mb: int = Field(
        default=500, ge=1, le=1_000_000, description="Space of the versions of one skill; the oldest are deleted first."
    )
    workspace_root: Path | None = Field(
        default=None, description="Folder that file tools and input files are taken from; `<data-dir>/workspace`."
    )
    workspace_quota_mb: int = Field(
        default=512, ge=1, le=1_000_000_000, description="Size of all workspaces of an API key together."
    )
    workspace_files: int = Field(
        default=10_000, ge=1, le=10_000_000, description="Files and folders in all workspaces of an API key together."
    )
    workspace_days: int = Field(
        default=7, ge=1, le=36_500, description="Days after which a workspace that is not used is deleted."
    )
    run_code: bool = Field(default=True, description="Whether models may run code that they wrote, in the sandbox.")
    sandbox_backend: BackendChoice = Field(
        default="auto", description="Sandbox backend: auto, bubblewrap, landlock, or plain, which is none."
    )
    sandbox_require: Annotated[tuple[Guarantee, ...], NoDecode] = Field(
        default=GUARANTEES, description="What must hold or nothing runs, separated by commas; `all` is everything."
    )
    sandbox_max_concurrency: int = Field(
        default_factory=default_concurrency, ge=1, le=1000, description="Runs at once; as many as there are cores."
    )
    sandbox_queue: int = Field(default=100, ge=0, le=100_000, description="How many runs may wait for their turn.")
    sandbox_warm: int = Field(
        default=1, ge=0, le=64, description="Sandboxes that are started beforehand, for each runtime; 0 is none."
    )
    sandbox_timeout_seconds: int = Field(
        default=60, gt=0, description="Time limit of a run, unless the skill sets another."
    )
    sandbox_max_timeout_seconds: int = Field(
        default=300, gt=0, description="Upper limit of a run's time, also if a skill or a caller asks for more."
    )
    sandbox_memory_mb: int = Field(default=512, ge=32, description="Memory of a run, all its processes together.")
    sandbox_output_mb: int = Field(default=10, ge=1, le=1024, description="Output of a run, both streams together.")
    sandbox_processes: int = Field(default=64, ge=16, description="Processes and threads of a run.")
    sandbox_disk_mb: int = Field(default=64, ge=1, description="Disk of a run's workspace.")
    sandbox_inodes: int = Field(default=4096, ge=64, description="Files in a run's workspace.")
    sandbox_fds: int = Field(default=256, ge=32, description="Files that each process of a run may have open.")
    run_retention_days: int = Field(default=30, ge=0, description="How long records and artifacts of runs are kept.")
    record_input: bool = Field(default=False, description="Whether the input of a run is kept with its record.")
    record_searches: bool = Field(
        default=True, description="Whether texts of searches are kept, to show which of them find nothing."
    )
    embedding: EmbeddingKind = Field(
        default="bundled", description="Where vectors come from: bundled, or openai for an endpoint of that kind."
    )
    embedding_models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Names of local models to use together; empty for those that are installed along."
    )
    reranker: str | None = Field(
        default=None, description="Name of an added model that orders the best results of a search again."
    )
    reranker_seconds: float = Field(
        default=DEFAULT_RERANKER_SECONDS, gt=0, le=60, description="How long a search may wait for the reranker."
    )
    embedding_base_url: str | None = Field(default=None, description="Address of the endpoint, without `/embeddings`.")
    embedding_model: str | None = Field(default=None, description="Model to ask the endpoint for.")
    embedding_api_key: SecretStr | None = Field(default=None, description="Key for the endpoint.")
    search_limit: int = Field(
        default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="Skills that a search returns by default."
    )
    search_threshold: float = Field(
        default=DEFAULT_THRESHOLD, ge=0, le=1, description="Confidence below which a skill is not shown."
    )
    llm_base_url: str | None = Field(
        default=None, description="Address of the model's server, without `/chat/completions`."
    )
    llm_api_key: SecretStr | None = Field(default=None, description="Key for the model's server.")
    llm_model: str | None = Field(default=None, description="Model for requests that name none.")
    llm_tool_mode: ToolMode = Field(
        default="auto", description="How tools are offered to the model: auto, native, schema or text."
    )
    llm: tuple[UpstreamSettings, ...] = Field(
        default=(), description="Several model servers, as `[[llm]]` tables in apex.toml."
    )
    mcp: tuple[McpServerConfig, ...] = Field(
        default=(), description="MCP servers whose tools are served, as `[[mcp]]` tables in apex.toml."
    )
    system_prompt: str | None = Field(
        default=None, description="System prompt for every model, in place of the built-in one."
    )
    system_prompt_file: Path | None = Field(default=None, description="File with the system prompt.")
    chat_max_turns: int = Field(default=12, ge=1, le=1000, description="Turns of a model in one request.")
    chat_max_calls: int = Field(default=40, ge=0, le=10_000, description="Tool calls in one request.")
    chat_max_seconds: int = Field(default=300, ge=1, le=86_400, description="How long a request may take.")
    chat_max_tokens: int = Field(
        default=0, ge=0, le=10**9, description="Tokens of all turns of a request together; 0 for any number."
    )
    chat_records: Recording = Field(
        default="steps", description="What is recorded of chat requests: off, steps without any text, or full."
    )
    chat_retention_days: int = Field(default=30, ge=0, description="How long records of chat requests are kept.")
    response_retention_days: int = Field(
        default=7,
        ge=0,
        le=36_500,
        description="How long responses of `/v1/responses` can be continued after their last use; 0 stores none.",
    )
    usage_memory: bool = Field(default=True, description="Whether confirmed requests help to find skills later.")
    usage_memory_shared: bool = Field(
        default=False, description="Whether requests of one API key may help requests of another."
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _with_scheme(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://, such as http://127.0.0.1:4318")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower_case_level(cls, value: Any) -> Any:
        return str(value).lower()

    @field_validator("api_keys_required", mode="before")
    @classmethod
    def _lower_case(cls, value: Any) -> Any:
        word = str(value).lower()
        return _TRUTH.get(word, word)

    @field_validator("allowed_hosts", "allowed_origins", "embedding_models", "sandbox_require", mode="before")
    @classmethod
    def _split_words(cls, value: Any, field: ValidationInfo) -> Any:
        words = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
        return GUARANTEES if field.field_name == "sandbox_require" and words == ["all"] else words

    @field_validator("skill_roots", mode="before")
    @classmethod
    def _split_roots(cls, value: Any) -> Any:
        return [root for root in value.split(":") if root] if isinstance(value, str) else value

    @field_validator("skill_roots", mode="after")
    @classmethod
    def _absolute_roots(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(map(_absolute, roots))

    @field_validator("data_dir", mode="after")
    @classmethod
    def _absolute_data_dir(cls, value: Path) -> Path:
        return _absolute(value)

    @field_validator("mcp", mode="after")
    @classmethod
    def _different_names(cls, servers: tuple[McpServerConfig, ...]) -> tuple[McpServerConfig, ...]:
        names = [server.name for server in servers]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two servers are named {repeated[0]}")
        return servers

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only three sources: a stray `.env` in the working directory is not read."""
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls)

    @property
    def retrieval(self) -> RetrievalSettings:
        return RetrievalSettings(
            embedding=self.embedding,
            models=self.embedding_models,
            reranker=self.reranker,
            reranker_seconds=self.reranker_seconds,
            base_url=self.embedding_base_url,
            model=self.embedding_model,
            api_key=self.embedding_api_key.get_secret_value() if self.embedding_api_key else None,
            limit=self.search_limit,
            threshold=self.search_threshold,
            usage_memory=self.usage_memory,
            usage_memory_shared=self.usage_memory_shared,
            usage_days=self.chat_retention_days,
        )

    @property
    def sandbox(self) -> SandboxSettings:
        return SandboxSettings(
            backend=self.sandbox_backend,
            require=self.sandbox_require,
            max_concurrency=self.sandbox_max_concurrency,
            queue=self.sandbox_queue,
            warm=self.sandbox_warm,
            limits=SandboxLimits(
                output_bytes=self.sandbox_output_mb * MB,
                memory_bytes=self.sandbox_memory_mb * MB,
                processes=self.sandbox_processes,
                disk_bytes=self.sandbox_disk_mb * MB,
                inodes=self.sandbox_inodes,
                files=self.sandbox_fds,
            ),
            path=os.environ.get("PATH", os.defpath),
        )

    @property
    def chat(self) -> ChatSettings:
        return ChatSettings(
            llm=LLMSettings(upstreams=self._upstreams, default_model=self.llm_model),
            limits=ChatLimits(
                turns=self.chat_max_turns,
                calls=self.chat_max_calls,
                seconds=self.chat_max_seconds,
                tokens=self.chat_max_tokens,
            ),
            system_prompt=self._system_prompt,
        )

    @property
    def _upstreams(self) -> tuple[Upstream, ...]:
        """The server of `llm_base_url`, with OpenAI's own variables as fallbacks, and those of the `[[llm]]` tables."""
        several = tuple(table.upstream() for table in self.llm)
        base_url = self.llm_base_url or (None if several else os.environ.get("OPENAI_BASE_URL"))
        if base_url is None:
            return several
        key = self.llm_api_key.get_secret_value() if self.llm_api_key else os.environ.get("OPENAI_API_KEY")
        return (Upstream(base_url=base_url, api_key=key, tool_mode=self.llm_tool_mode), *several)

    @property
    def _system_prompt(self) -> str | None:
        if self.system_prompt is not None or self.system_prompt_file is None:
            return self.system_prompt
        try:
            return self.system_prompt_file.expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ServerError(
                f"APEX_SYSTEM_PROMPT_FILE: {self.system_prompt_file} cannot be read", code="INVALID_SETTING"
            ) from error

    @property
    def workspace(self) -> Path:
        """The folder of the file tools, and of input files."""
        return _absolute(self.workspace_root or self.data_dir / "workspace")

    @property
    def workspace_limits(self) -> WorkspaceLimits:
        return WorkspaceLimits(
            quota_bytes=self.workspace_quota_mb * MB, max_files=self.workspace_files, days=self.workspace_days
        )

    @property
    def skills(self) -> SkillsSettings:
        return SkillsSettings(
            roots=self.skill_roots,
            default_mode=self.default_mode,
            enable_direct_mode=self.enable_direct_mode,
            default_profile=self.default_profile,
            require_entry_script=self.require_entry_script,
            sandbox_timeout_ms=min(self.sandbox_timeout_seconds, self.sandbox_max_timeout_seconds) * 1000,
            max_sandbox_timeout_ms=self.sandbox_max_timeout_seconds * 1000,
            confirm_dangerous=self.confirm_dangerous,
            fetch=FetchSettings(
                private_addresses=self.install_private_addresses,
                max_mb=self.install_max_mb,
                timeout_seconds=self.install_timeout_seconds,
            ),
            intake=IntakeSettings(scan=self.scan, scan_severity=self.scan_severity, require_signed=self.require_signed),
            versions=VersionLimits(count=self.version_count, days=self.version_days, mb=self.version_mb),
        )


def load_settings(**flags: Any) -> Settings:
    """Settings from flags (None counts as missing), environment and file. Raises INVALID_SETTING."""
    flags = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**flags)
    except ValidationError as error:
        sources = origins(**flags)
        problems = [f"{_source(str(item['loc'][0]), sources)}: {item['msg']}" for item in error.errors()]
        raise ServerError("; ".join(problems), code="INVALID_SETTING") from error
    except ValueError as error:
        raise ServerError(f"{SETTINGS_FILE} cannot be read: {error}", code="INVALID_SETTING") from error


def origins(**flags: Any) -> dict[str, Origin]:
    """The source of each setting's value."""
    environment, file = _Environment(Settings)(), TomlConfigSettingsSource(Settings)()

    def origin(name: str) -> Origin:
        if flags.get(name) is not None:
            return "flag"
        return "environment" if name in environment else "apex.toml" if name in file else "default"

    return {name: origin(name) for name in Settings.model_fields}


def masked_address(text: str) -> str:
    """Mask user name and password in a URL, and its query, which may hold a key."""
    text = _CREDENTIALS.sub("//**********@", text)
    return _QUERY.sub(r"\1?**********", text)


def _source(name: str, sources: dict[str, Origin]) -> str:
    """The flag, variable or line of the file that set a setting."""
    named: dict[Origin, str] = {"flag": f"--{name.replace('_', '-')}", "environment": f"APEX_{name.upper()}"}
    return named.get(sources.get(name, "apex.toml"), f"{name} in {SETTINGS_FILE}")


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()

"""Every setting of a running server with its source, without secrets."""

from typing import Any, Literal

from pydantic import Field, SecretStr

from apexbridge.errors import ServerError
from apexbridge.settings import SETTINGS_FILE, Origin, Settings, load_settings, masked_address, origins
from apexbridge.skills.config import SkillManagerConfig
from apexbridge.wire import WireModel

MAX_VALUE_CHARACTERS = 2_000
Source = Literal["default", "environment", "file", "command line", "changed while running"]
_FLAGS = ("data_dir", "host", "port")
"""Settings that are options of `apex serve`."""
_SOURCES: dict[Origin, Source] = {
    "flag": "command line",
    "environment": "environment",
    "apex.toml": "file",
    "default": "default",
}


class SettingView(WireModel):
    name: str = Field(description="As in the environment: APEX_….")
    value: str | None = Field(description="As text; of a secret only `set` or `not set`.")
    source: Source
    file: str | None = Field(description="The file that set it.")
    default: str | None
    description: str
    is_secret: bool
    changeable: bool = Field(description="Whether PATCH /api/config changes it until the next start.")


class SettingsView:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._origins: dict[str, Origin] | None = None

    def list(self, config: SkillManagerConfig) -> "list[SettingView]":
        """All settings; `config` is what can be changed while the server runs. Reads apex.toml the first time."""
        if self._origins is None:
            self._origins = _origins(self._settings)
        current = {
            "skill_roots": tuple(config.custom_paths),
            "default_mode": config.default_mode,
            "enable_direct_mode": config.enable_direct_mode,
            "sandbox_timeout_seconds": config.sandbox_timeout // 1000,
        }
        started = {
            **{name: getattr(self._settings, name) for name in current},
            "sandbox_timeout_seconds": self._settings.skills.sandbox_timeout_ms // 1000,
        }
        views = []
        for name, field in Settings.model_fields.items():
            is_changed = name in current and current[name] != started[name]
            source: Source = "changed while running" if is_changed else _SOURCES[self._origins[name]]
            value = current[name] if is_changed else getattr(self._settings, name)
            is_secret = "SecretStr" in str(field.annotation)
            views.append(
                SettingView(
                    name=f"APEX_{name.upper()}",
                    value=("set" if value else "not set") if is_secret else _shown(name, value),
                    source=source,
                    file=SETTINGS_FILE if source == "file" else None,
                    default=None if field.default_factory is not None else _shown(name, field.default),
                    description=field.description or "",
                    is_secret=is_secret,
                    changeable=name in current,
                )
            )
        return views


def _origins(settings: Settings) -> dict[str, Origin]:
    """The source of each value. A flag is found by its value, which differs from that of the other sources."""
    found = origins()
    try:
        without_flags = load_settings()
    except ServerError:  # a flag replaced a value that is not valid, or the file was changed since the start
        return found
    for name in _FLAGS:
        if getattr(settings, name) != getattr(without_flags, name):
            found[name] = "flag"
    return found


def _shown(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, SecretStr):
        return None
    if name == "llm":
        value = [f"{table.name} {masked_address(table.base_url)}" for table in value]
    elif name == "mcp":
        value = [server.name for server in value]  # their variables and headers may be secret
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))[:MAX_VALUE_CHARACTERS]
    return masked_address(str(value))[:MAX_VALUE_CHARACTERS]

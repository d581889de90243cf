"""Configurations of MCP servers: what is valid, and what is shown of them."""

from typing import Any

import pytest
from pydantic import ValidationError

from apexbridge.mcp_client.config import McpServerConfig, shown_values
from apexbridge.mcp_client.secret_values import MissingSecretError, ResolvedValues

STDIO = {"name": "files", "command": "server"}
HTTP = {"name": "files", "url": "https://example.com/mcp"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "files"}, "name either a command or a url"),
        ({**STDIO, "url": "https://example.com"}, "name either a command or a url"),
        ({**STDIO, "name": "a b"}, "pattern"),
        ({**STDIO, "name": "x" * 33}, "pattern"),
        ({**STDIO, "name": "skill"}, "reserved"),
        ({**STDIO, "name": "skill_"}, "reserved"),  # skill__x is how models call the skill x
        ({**STDIO, "command": ""}, "at least 1 character"),
        ({**STDIO, "command": "a\0b"}, "pattern"),
        ({**STDIO, "args": ["--token", "${secret:TOKEN}"]}, "visible to all users"),
        ({**STDIO, "args": ["x"] * 101}, "at most 100"),
        ({**STDIO, "env": {"A B": "x"}}, "not the name of a variable"),
        ({**STDIO, "env": {"A": "${secret:}"}}, "a reference to a secret is"),
        ({**STDIO, "env": {"GITHUB_TOKEN": "ghp_literal"}}, "is a credential"),
        ({**STDIO, "env": {f"V{number}": "x" for number in range(51)}}, "at most 50"),
        ({**STDIO, "headers": {"A": "b"}}, "headers belong to a url"),
        ({**STDIO, "cwd": "relative"}, "absolute path"),
        ({**STDIO, "permissions": ["net:example.com:443"]}, "permissions are for a command with sandbox"),
        ({**STDIO, "sandbox": True, "permissions": ["env:LANG"]}, "passed in env"),
        ({**STDIO, "sandbox": True, "permissions": ["fs:rw:/x"]}, "not a permission"),
        ({**STDIO, "timeout_seconds": 0}, "greater than or equal"),
        ({**STDIO, "approval": "maybe"}, "'auto', 'always' or 'never'"),
        ({**STDIO, "unknown": 1}, "Extra inputs"),
        ({**HTTP, "url": "ftp://example.com"}, "write an address"),
        ({**HTTP, "url": "https://"}, "write an address"),
        ({**HTTP, "url": "https://a b/"}, "write an address"),
        ({**HTTP, "url": "https://user:pass@example.com"}, "addresses are logged"),
        ({**HTTP, "url": "https://example.com/?api_key=x"}, "addresses are logged"),
        ({**HTTP, "args": ["x"]}, "belong to a command"),
        ({**HTTP, "sandbox": True}, "belong to a command"),
        ({**HTTP, "headers": {"Authorization": "Bearer abc"}}, "is a credential"),
        ({**HTTP, "headers": {"X": "a\r\nHost: b"}}, "no header can have"),
        ({**HTTP, "headers": {"Host": "b"}}, "set by the client"),
        ({**HTTP, "headers": {"Mcp-Method": "b"}}, "set by the client"),
        ({**HTTP, "headers": {"a:b": "c"}}, "not the name of a header"),
    ],
)
def test_a_wrong_configuration_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        McpServerConfig.model_validate(fields)
    assert problem in str(refused.value)


def test_only_references_to_secrets_are_shown() -> None:
    values = {"Authorization": "Bearer ${secret:TOKEN}", "X-Team": "docs"}
    config = McpServerConfig.model_validate({**HTTP, "url": "https://example.com/mcp?team=1", "headers": values})
    assert shown_values(config.headers) == {"Authorization": "Bearer ${secret:TOKEN}", "X-Team": "***"}
    assert config.shown_url == "https://example.com/mcp"


def test_secrets_are_inserted_and_masked_in_every_usual_form() -> None:
    resolved = ResolvedValues(
        {"A": "Bearer ${secret:ONE}", "B": "${secret:ONE}-${secret:TWO}"},
        {"ONE": "first-secret", "TWO": "second+secret"}.get,
    )
    assert resolved.values == {"A": "Bearer first-secret", "B": "first-secret-second+secret"}
    assert resolved.masked("first-secret, second%2Bsecret, first") == "***, ***, first"
    with pytest.raises(MissingSecretError, match="apex secrets set NONE"):
        ResolvedValues({"A": "${secret:NONE}"}, lambda name: None)


def test_the_fingerprint_covers_what_can_change_the_tools() -> None:
    config = McpServerConfig.model_validate(STDIO)
    assert config.fingerprint == config.model_copy(update={"approval": "never"}).fingerprint
    assert config.fingerprint != config.model_copy(update={"args": ("x",)}).fingerprint

"""Settings of the chat loop."""

from dataclasses import dataclass
from typing import Literal

from apexbridge.agent.budget import ChatLimits
from apexbridge.llm.config import LLMSettings

Recording = Literal["off", "steps", "full"]
"""Nothing; steps, times and tokens without texts; or everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    llm: LLMSettings
    limits: ChatLimits
    system_prompt: str | None = None
    """Replaces the default prompt. Empty: no system prompt."""

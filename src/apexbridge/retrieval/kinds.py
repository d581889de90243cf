"""What a search finds. Without imports, because clients read it too."""

from typing import Literal

Kind = Literal["skill", "tool"]

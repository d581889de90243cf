"""Values that refer to secrets by name: `Bearer ${secret:GITHUB_TOKEN}`. The secrets are only inserted to connect."""

import re
from collections.abc import Callable, Mapping

from apexbridge.sandbox.masking import MASK as MASK  # re-exported
from apexbridge.sandbox.masking import StreamMasker, secret_patterns

_REFERENCE = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]{0,127})\}")
_BEGINNING = "${secret:"
SecretOf = Callable[[str], str | None]


class MissingSecretError(Exception):
    """A value refers to a secret that is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the secret {name} is not set; set it with: apex secrets set {name}")


def has_reference(value: str) -> bool:
    return _BEGINNING in value


def checked_value(value: str) -> None:
    """Raise ValueError if a reference is malformed."""
    if _BEGINNING in _REFERENCE.sub("", value):
        raise ValueError("a reference to a secret is ${secret:NAME}")


class ResolvedValues:
    """Headers or variables with the secrets inserted, and what must be masked in the server's text."""

    def __init__(self, values: Mapping[str, str], secret_of: SecretOf) -> None:
        """Raise MissingSecretError if a secret is not set."""
        secrets: dict[str, str] = {}

        def inserted(found: re.Match[str]) -> str:
            secret = secret_of(found[1])
            if secret is None:
                raise MissingSecretError(found[1])
            secrets[found[1]] = secret
            return secret

        self.values = {name: _REFERENCE.sub(inserted, value) for name, value in values.items()}
        self._patterns = secret_patterns(secrets)

    def masked(self, text: str) -> str:
        """The text without the secrets."""
        if not self._patterns:
            return text
        masker = StreamMasker(self._patterns)
        return masker.add(text) + masker.end()

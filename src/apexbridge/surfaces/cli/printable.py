"""Text from a stranger, without what a terminal would take for a command."""


def printable(text: str) -> str:
    """The text with control characters replaced; line ends and tabs stay."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)

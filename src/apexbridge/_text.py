"""Text of unknown origin, made fit to be shown."""


def escaped(text: str) -> str:
    """The text with everything that cannot be seen as an escape: controls, line ends, direction marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )

"""Parsing of paths: refused paths and the messages about them."""

import pytest

from apexbridge.errors import InvalidInputError, PermissionDeniedError
from apexbridge.tools.builtin.files.paths import read_path


@pytest.mark.requirement("A6")
@pytest.mark.parametrize("path", ["/etc/passwd", "//etc", "..", "../x", "a/../b", "a/..", "./../x", "a/b/../../../x"])
def test_absolute_paths_and_paths_upwards_are_refused(path: str) -> None:
    with pytest.raises(PermissionDeniedError, match="workspace"):
        read_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a\0b",
        "a\\b",
        "..\\..\\etc",
        "C:\\x",
        "a/",
        "a//b",
        "a" * 256,
        "é" * 128,
        "x/" * 2047 + "yy",
        "\udcff",
        "a" * 4096,
        "b/" * 300 + "c",
    ],
)
def test_an_invalid_path_is_refused_with_a_reason(path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_path(path)
    caught.value.message.encode()
    assert len(caught.value.message) < 300


def test_a_message_contains_no_terminal_escapes() -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_path("\x1b[31mred\\")
    assert "\x1b" not in caught.value.message

"""Names for requests and answers: they tell things apart and open nothing, so the kernel is not asked for each."""

import os
import random

from starlette.types import Scope

MAX_REQUEST_ID = 128
_numbers = random.Random(os.urandom(32))  # noqa: S311


def fresh(prefix: str) -> str:
    """A name that was not given before."""
    return f"{prefix}{_numbers.getrandbits(128):032x}"


def request_id(scope: Scope) -> str:
    """The name that the client gave its request, if it is one, or else a fresh one."""
    return given_request_id(scope) or fresh("req_")


def given_request_id(scope: Scope) -> str:
    """The name that the client gave its request; empty where it gave none that can stand in a line of a log."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return given if len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else ""

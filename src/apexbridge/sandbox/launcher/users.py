"""Users for runs: each has one of its own while it lasts, whichever server of this host started it."""

import os
import socket


class Users:
    """Gives out user numbers; only root can. A number is taken by a name that the kernel lets only one hold."""

    def __init__(self, first: int, count: int) -> None:
        self._numbers = range(first, first + count)
        self._taken: dict[int, socket.socket] = {}

    def take(self) -> int | None:
        """A number that nobody else has; None where this process cannot become another user.

        Raises:
            OSError: every number is taken.
        """
        if os.getuid() != 0:
            return None
        for number in self._numbers:
            if number in self._taken:
                continue
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0apexbridge-user-{number}")
            except OSError:
                claim.close()
                continue
            self._taken[number] = claim
            return number
        raise OSError("no user is left for another run")

    def give_back(self, number: int | None) -> None:
        """Nothing runs as this user any more."""
        if number is not None:
            self._taken.pop(number).close()

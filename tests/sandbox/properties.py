"""How properties are tried in this room."""

from hypothesis import settings

unhurried = settings(deadline=None)
"""How long an example takes says something of the machine alone."""

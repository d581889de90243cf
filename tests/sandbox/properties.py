"""Settings of property tests."""

from hypothesis import settings

unhurried = settings(deadline=None)
"""The duration of an example depends on the machine only."""

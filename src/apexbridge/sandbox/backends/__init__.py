"""Kinds of walls: what each needs, and what each holds by which means."""

"""Workspace files: a folder for each caller, and access that cannot leave it."""

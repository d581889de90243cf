"""Workspaces that last between runs: the files of a conversation."""

"""Runs untrusted scripts in a sandbox: isolation backends, limits, a supervisor, and results that list what held."""

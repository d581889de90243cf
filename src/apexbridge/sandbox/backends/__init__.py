"""Sandbox backends: what each needs, and which guarantees it enforces by which mechanism."""

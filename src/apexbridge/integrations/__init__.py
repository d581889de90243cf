"""Tools of a server for agent frameworks. Each module needs its framework, and imports nothing else that is heavy."""

"""Tools: their definition, the registry, and the one place that runs a call."""

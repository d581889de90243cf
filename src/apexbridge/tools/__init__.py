"""Tools: what they are, where they are kept, and the one place that runs a call."""

"""What arguments a script takes, read from its source; nothing of it is ever run."""

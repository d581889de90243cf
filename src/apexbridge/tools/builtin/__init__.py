"""The built-in tools; they run in the server's process."""

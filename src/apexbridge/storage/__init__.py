"""SQLite: what the product remembers of the disk, and what only it knows (counters, choices)."""

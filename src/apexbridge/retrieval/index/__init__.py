"""The index: LanceDB is the copy that lasts, memory the one that answers."""

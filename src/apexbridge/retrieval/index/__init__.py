"""The search index: searches read memory, LanceDB is the durable copy."""

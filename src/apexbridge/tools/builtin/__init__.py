"""The tools that come with the product; each runs in the server's own process."""

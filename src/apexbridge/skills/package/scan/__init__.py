"""The scan of a package: what in it may be meant to harm the user."""

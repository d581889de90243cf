"""Files of the workspace: which folder is whose, and how nothing leads out of it."""

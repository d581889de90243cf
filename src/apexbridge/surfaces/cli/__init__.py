"""The command line. Heavy modules are imported inside the command that needs them, so that `--help` is fast."""

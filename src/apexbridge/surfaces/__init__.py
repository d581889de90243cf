"""Entry points: HTTP and the command line. They translate requests and responses; `bridge` has the logic."""

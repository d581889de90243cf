"""What an operator sees of a running server: events, status, figures."""

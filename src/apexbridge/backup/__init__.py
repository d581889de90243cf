"""Backups of a data directory: made while the server runs, checked, and restored completely or not at all."""

"""Tests of the HTTP client and of the adapters for frameworks."""

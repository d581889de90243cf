"""The console: a web page that is built from `console/` and served by the HTTP application."""

"""A skill on disk and its life: parse, validate, install, list, edit, reload, uninstall."""

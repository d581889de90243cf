// Loaded once, so that loading a module has been done before.

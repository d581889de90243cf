"""The command line. Modules here import what is heavy inside the command that needs it, so that help is instant."""

"""A separate program that creates sandboxes, starts runs in them, enforces their limits and cleans up.

The server starts one launcher and talks to it over a socket. It is a separate process for four reasons: it has a mount
namespace in which workspaces are mounted, it forks without the server's threads and memory, the kernel kills everything
it started when it exits, and polling `/proc` every few milliseconds does not block the server's event loop.

Modules here import only the standard library.
"""

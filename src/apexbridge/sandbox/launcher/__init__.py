"""A small program of its own: it builds the walls, starts what runs inside, watches it, and clears it away.

The server starts one launcher and talks to it over a socket. It is a process of its own for four reasons: it lives in a
mount namespace where workspaces are mounted, it forks without the server's threads and memory, the kernel ends
everything it started when it ends, and reading `/proc` every few milliseconds costs the server's event loop nothing.

Nothing here imports anything but the standard library.
"""

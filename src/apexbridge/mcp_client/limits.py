"""Limits for other MCP servers, which are untrusted."""

MAX_SERVERS = 100
MAX_TOOLS = 1_000
"""Tools of one server; further ones are left out."""
MAX_PAGES = 100
"""Pages of one list."""
MAX_LIST_BYTES = 8 * 1024 * 1024
"""Descriptions and schemas of all tools of a server together."""
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""One message, or one response over HTTP. Parsing it takes about 20 ms of the event loop."""
MAX_DESCRIPTION_BYTES = 16 * 1024
MAX_SCHEMA_BYTES = 64 * 1024
MAX_NAME_CHARACTERS = 256
"""Of a tool, as the server names it."""
MAX_PROBLEMS = 20
"""Tools that were left out, listed in the status."""
MAX_ERROR_CHARACTERS = 500
MAX_RESULT_BYTES = 1024 * 1024
"""The result object of a call. The text for the model is cut further, as for every tool."""
MAX_BLOCKS = 100
"""Content blocks of a result."""
MAX_ROUNDS = 3
"""How often a server may answer a call with questions instead of a result."""
MAX_CALLS = 32
"""Calls of one server that run at once; further ones wait."""

CONNECT_SECONDS = 30.0
LIST_SECONDS = 30.0
REFRESH_SECONDS = 300.0
"""How often the list is read again without a notification. It also detects HTTP servers that have gone."""
RELIST_PAUSE_SECONDS = 2.0
"""The shortest time between two reads of the list, also if a server announces changes more often."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Between attempts to connect."""
STABLE_SECONDS = 30.0
"""A connection that lasted this long starts again with the shortest pause."""
STOP_SECONDS = 2.0
"""How long a process may take to end after its input is closed, and again after SIGTERM."""

MESSAGES_PER_SECOND = 500
BYTES_PER_SECOND = 16 * 1024 * 1024
"""What is read of one server; more waits in its pipe or socket."""
STDERR_BYTES = 4 * 1024
"""The end of what a process printed to stderr, for error messages."""

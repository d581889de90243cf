"""Client of the HTTP API of a running server: `Client` for asyncio, and `SyncClient` with the same methods.

`_sync` is generated from `_async` by `scripts/unasync.py`.
"""

from apexbridge.client._async.client import Client as Client
from apexbridge.client._sync.client import SyncClient as SyncClient

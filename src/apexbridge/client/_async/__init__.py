"""The client for asyncio."""

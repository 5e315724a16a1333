"""The virtual engine: links, flows and asyncio programs in virtual time."""

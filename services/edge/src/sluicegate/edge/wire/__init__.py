"""Bytes in, bytes out: SSE, usage scan, JSON splice. No I/O, no asyncio, no clock."""

"""The Python SDK, over real sockets against a real server."""

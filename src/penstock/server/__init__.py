"""The server: puts all parts together, opens its storage and its listeners, and runs until it is stopped."""

"""The server: builds all parts, opens its stores and its listeners, and runs until it is stopped."""

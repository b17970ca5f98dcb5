"""The topics door in the Redis protocol, and the engine's own verbs beside it. docs/resp.md is for its users."""

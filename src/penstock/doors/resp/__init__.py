"""The topics door in the Redis protocol, and commands for jobs. docs/resp.md is the page for users."""

"""Outgoing requests of the server: webhooks, and the guard that keeps them away from private addresses."""

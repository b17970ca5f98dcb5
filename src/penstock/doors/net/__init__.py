"""Sockets, listeners and send queues that several doors share."""

"""The topics door: publish bytes to a topic, and subscribe to it, one message at a time. Compatible with miniqueue."""

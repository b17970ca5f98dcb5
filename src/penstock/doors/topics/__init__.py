"""The topics door: publish bytes to a topic, subscribe to it, one message in hand at a time. As miniqueue does it."""

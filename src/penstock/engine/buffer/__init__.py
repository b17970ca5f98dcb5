"""The enqueue buffer: pushes that are answered from a log and stored later."""

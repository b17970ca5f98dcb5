"""Attacks on a real server over its listeners, each bounded in count and time, on loopback only.

Each test compares the server under attack with the same server at rest: its memory, how long its event loop was held, and the
answers that other clients get. No absolute times are asserted.
"""

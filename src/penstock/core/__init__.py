"""The domain as pure code.

It has jobs, their lifecycle, ids, the clock, retry rules, limits, events and errors, and imports no other package.
"""

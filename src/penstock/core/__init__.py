"""The domain, pure: jobs, their lifecycle, ids, the clock, retry rules, limits, events, errors. Imports nothing above it."""

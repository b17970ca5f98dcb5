"""Bulk reads: a process of its own reads stores and writes Arrow into files, so that the server has nothing to do with it."""

"""Bulk reads: a separate process reads stores and writes Arrow files, so that the server does not do this work."""

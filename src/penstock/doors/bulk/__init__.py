"""Bulk endpoints: large results as Arrow, for programs that read everything."""

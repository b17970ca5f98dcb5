"""Bulk endpoints: what there is as Arrow, for programs that want all of it."""

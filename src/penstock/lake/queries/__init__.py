"""Queries of a lake, with pyarrow only.

Every function takes rows of gold tables, partial or folded, and returns a table. Queries only add, so the result does not
depend on the number of batches that built the lake. ``api`` combines them: from names and windows to answers.
"""

"""What people ask of a lake, answered with pyarrow alone.

Every function takes rows of gold tables, partial or folded, and gives a table: what is asked only adds, so it does not
matter in how many pieces the lake was built. ``questions`` puts it together: from names and windows to answers.
"""

"""Penstock and Apache Spark: the data source ``penstock``, and a session that finds what it needs.

Nothing is imported here: Spark's workers load this package for every query.
"""

"""Penstock and Apache Spark: the data source ``penstock``, and a Spark session with the settings that it needs.

Nothing is imported here: Spark's workers load this package for every query.
"""

"""``make bench-spark``: rows per second between Spark and a server, beside what a user would write instead."""

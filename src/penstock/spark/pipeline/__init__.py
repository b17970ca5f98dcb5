"""The builder of the lake: reads the journal, and builds bronze, silver and gold from it with Spark.

Executors fetch events and write files of all tables (``tasks``); ``penstock.lake.transform`` computes the tables. The driver
commits (``run``): bronze first, with the position in the journal up to which it goes. That is one commit, so the lake itself
has the position to continue from, and no checkpoint can contradict it. Then every other table, each with the number of the
batch. After a crash at any moment, the missing tables of the last batch are built again from bronze, and the others stay.
"""

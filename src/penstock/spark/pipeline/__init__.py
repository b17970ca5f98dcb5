"""The builder of the lake: takes the journal, and makes bronze, silver and gold of it with Spark.

Executors fetch events and write files of all tables (``tasks``); what is made of events is in ``penstock.lake.transform``. The
driver commits (``run``): bronze first, with the place in the journal up to which it goes. That is one commit, so the lake
itself knows where to go on, and there is no checkpoint that could know otherwise. Then every other table, each of which notes
the batch. After a crash at any moment, what is missing of the last batch is made again from bronze, and the rest is left alone.
"""

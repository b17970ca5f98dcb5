"""The lake: the history of all queues as Delta tables, which any Delta reader can read. Needs no Spark and no server.

``tables`` defines the tables, ``location`` finds them, ``histogram`` stores times so that percentiles can be merged.
"""

"""The lake: the whole life of the queues as Delta tables, which anybody can read. No Spark and no server in here.

``tables`` says what there is, ``place`` where it is, ``histogram`` how times are kept so that percentiles can be merged.
"""

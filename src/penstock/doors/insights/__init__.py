"""``/insights``: the history of the queues, from the lake, without a JVM."""

"""``/insights``: what the lake knows of the queues' life, told without a JVM."""

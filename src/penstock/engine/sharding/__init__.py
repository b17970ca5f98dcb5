"""Several shards as one engine: routing, names, dependencies across shards, moving queues."""

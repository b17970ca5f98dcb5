"""The jobs door: the REST dialect for queues of jobs."""

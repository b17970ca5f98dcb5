"""The jobs door: the bunqueue API for job queues, over HTTP, TCP and WebSocket."""

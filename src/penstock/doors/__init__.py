"""The ways in. A door reads a request, turns it into a command for the engine, and renders the answer in its dialect."""

"""Who may come in: tokens, and how often each client may ask."""

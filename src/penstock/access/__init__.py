"""Who may come in and do what: the gate, tokens, rights; how often each client may ask, how much a namespace may be given."""

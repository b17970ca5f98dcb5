"""Access: authentication, rights, rate limits of clients, and quotas of namespaces."""

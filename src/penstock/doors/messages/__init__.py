"""The messages door: namespaces, delivery at any millisecond, visibility timeouts. As EpochQ does it."""

"""The messages door: namespaces, delivery at a set millisecond, visibility timeouts. Compatible with EpochQ."""

"""The batches door: mqueue's API. Items with integer ids, in namespaces and topics, lower priority first."""

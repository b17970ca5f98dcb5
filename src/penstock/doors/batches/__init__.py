"""The batches door: mqueue's API. Items have integer ids, namespaces and topics; a lower priority comes first."""

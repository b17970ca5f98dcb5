"""Consumer groups with their epochs, and staged writes."""

"""The durable seam: what the engine may ask of a store, and the stores themselves."""

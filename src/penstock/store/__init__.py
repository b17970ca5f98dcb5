"""The storage layer: the contract between the engine and a store, and the stores."""

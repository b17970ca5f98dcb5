# Made from _async/__init__.py by make sdk. Change that one.
"""The synchronous client."""

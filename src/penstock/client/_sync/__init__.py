# Made from _async/__init__.py by make sdk. Change that one.
"""The asynchronous client. ``make sdk`` generates ``penstock.client._sync`` from it; edit this one."""

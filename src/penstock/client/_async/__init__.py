"""The asynchronous client. ``make sdk`` generates ``penstock.client._sync`` from it; edit this one."""

"""The asynchronous client. ``penstock.client._sync`` is made from this by ``make sdk``; change this one."""

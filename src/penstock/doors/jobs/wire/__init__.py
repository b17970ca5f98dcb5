"""The bodies and queries that the jobs door accepts, and the replies that it sends, with their limits.

The annotations are the contract: the decoder, the error texts and the OpenAPI document are derived from them.
``requests.py`` has the requests, ``replies.py`` the replies, ``fields.py`` the types of single fields; ``webhooks.py`` has
both directions for webhooks, ``client.py`` those that only bunqueue's own client uses. Import from these modules.
"""

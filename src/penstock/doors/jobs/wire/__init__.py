"""What goes over the wire of the jobs door: the bodies it takes and the replies it gives, with their limits.

The annotations are the contract: they drive the decoder, the error texts and the OpenAPI document. ``requests.py`` has what
comes in, ``replies.py`` what goes out, ``fields.py`` the types of single fields; ``webhooks.py`` has both directions for
webhooks, ``client.py`` those that only bunqueue's own client uses. Import from these modules.
"""

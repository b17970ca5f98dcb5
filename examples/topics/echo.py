"""The simplest use of a topic: publish some words, and receive them in the same order, until none arrives for a second.

python examples/topics/echo.py hello world
"""

import argparse
import sys

from client import NoServer, Refused, Subscription, publish


def run(url, topic, words, **more):
    """Publish the words, then print the messages."""
    for word in words:
        publish(url, topic, word.encode(), **more)
    with Subscription(url, topic, **more) as subscription:
        subscription.send("INIT")
        while (message := subscription.receive(timeout=1)) is not None:
            print(message.data.decode(), flush=True)
            subscription.send("ACK")  # this one is done; get the next one


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", default=["hello", "world"])
    options.add_argument("--url", default="http://127.0.0.1:6790")
    options.add_argument("--topic", default="echo")
    options.add_argument("--cacert", help="certificate to trust, for example data/dev-cert.pem")
    given = options.parse_args()
    try:
        run(given.url, given.topic, given.words, cafile=given.cacert)
    except (NoServer, Refused) as error:
        sys.exit(str(error))

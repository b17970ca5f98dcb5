"""Exponential backoff: a message that fails is tried again after 1 s, 2 s, 4 s, calculated from its dackCount.

python examples/topics/backoff.py --rounds 3
"""

import argparse
import sys
import time

from client import NoServer, Refused, Subscription, publish


def run(url, topic, rounds, **more):
    """Fail as often as there are rounds, then succeed."""
    publish(url, topic, b"call me back", **more)
    with Subscription(url, topic, **more) as subscription:
        subscription.send("INIT")
        patience, put_off_at = 1, 0.0
        while (message := subscription.receive(timeout=patience)) is not None:
            if message.dack_count:
                print(f"came back after {time.monotonic() - put_off_at:.1f} s", flush=True)
            if message.dack_count < rounds:
                seconds = 2**message.dack_count
                print(f"try {message.dack_count + 1} failed, again in {seconds} s", flush=True)
                patience, put_off_at = seconds + 1, time.monotonic()
                subscription.send(f"DACK {seconds}")  # other messages are delivered in the meantime
            else:
                print(f"try {message.dack_count + 1} succeeded", flush=True)
                patience = 1
                subscription.send("ACK")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--rounds", type=int, default=3, help="how often it fails; default: 3, which takes 1 + 2 + 4 seconds"
    )
    options.add_argument("--url", default="http://127.0.0.1:6790")
    options.add_argument("--topic", default="backoff")
    options.add_argument("--cacert", help="certificate to trust, for example data/dev-cert.pem")
    given = options.parse_args()
    try:
        run(given.url, given.topic, given.rounds, cafile=given.cacert)
    except (NoServer, Refused) as error:
        sys.exit(str(error))

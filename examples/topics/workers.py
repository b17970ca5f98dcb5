"""Workers that fail: some end while they hold a message, some return it, and still every message is processed.

python examples/topics/workers.py --workers 4 --messages 20
"""

import argparse
import sys
import threading
import time

from client import NoServer, Refused, Subscription, publish


class Died(Exception):
    """Ends a worker in the middle of its work."""


class Crew:
    """Workers of one topic. A worker that dies is replaced."""

    def __init__(self, url, topic, expected, **more):
        self.connect = lambda: Subscription(url, topic, **more)
        self.left = set(expected)
        self.seen = set()
        self.deaths = self.nacks = 0
        self.all_done = threading.Event()
        self.lock = threading.Lock()

    def work(self, data):
        """Do the work. On the first attempt, one message in five ends the worker, and another one fails."""
        number = int(data)
        with self.lock:
            first_time = number not in self.seen
            self.seen.add(number)
        if first_time and number % 5 == 1:
            raise Died
        if first_time and number % 5 == 3:
            raise ValueError("not today")

    def worker(self, name):
        """Process messages until all of them are done."""
        with self.connect() as subscription:
            subscription.send("INIT")
            while True:
                message = subscription.receive(timeout=0.5)
                if message is None:
                    if self.all_done.is_set():
                        return
                    continue
                try:
                    self.work(message.data)
                except Died:
                    print(f"{name} died of {message.data.decode()}", flush=True)
                    subscription.close()  # without NACK: the server returns the message to the front
                    raise
                except ValueError as error:
                    print(f"{name} gave {message.data.decode()} back: {error}", flush=True)
                    with self.lock:
                        self.nacks += 1
                    subscription.send("NACK")  # to the front; BACK would be to the back, DACK 5 to the front in 5 seconds
                    continue
                subscription.send("ACK")
                self.count(int(message.data))

    def count(self, number):
        with self.lock:
            self.left.discard(number)
            if not self.left:
                self.all_done.set()

    def keep_working(self, name):
        """Run a worker, and start another one whenever it dies."""
        while not self.all_done.is_set():
            try:
                self.worker(name)
            except Died:
                with self.lock:
                    self.deaths += 1
            except OSError as error:  # the server does not answer: try again in a second
                print(f"{name} waits for the server: {error}", flush=True)
                time.sleep(1)


def run(url, topic, workers, messages, **more):
    """Publish numbers, and let the workers process them."""
    for number in range(messages):
        publish(url, topic, str(number).encode(), **more)
    crew = Crew(url, topic, range(messages), **more)
    threads = [threading.Thread(target=crew.keep_working, args=(f"worker {each}",), daemon=True) for each in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{messages - len(crew.left)} of {messages} done, {crew.deaths} workers died, {crew.nacks} messages given back")
    return not crew.left


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--messages", type=int, default=20)
    options.add_argument("--url", default="http://127.0.0.1:6790")
    options.add_argument("--topic", default="workers")
    options.add_argument("--cacert", help="certificate to trust, for example data/dev-cert.pem")
    given = options.parse_args()
    try:
        sys.exit(
            0
            if run(given.url, given.topic, given.workers, given.messages, cafile=given.cacert)
            else "not everything was done"
        )
    except (NoServer, Refused) as error:
        sys.exit(str(error))

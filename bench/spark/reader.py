"""``python -m bench.spark.reader URL``: takes snapshots of jobs and fetches them, until its input ends.

Says a line when it begins, and at the end how many it has read, in parts of one too.
"""

from __future__ import annotations

import sys
import threading

import httpx2

from bench.goals import say


def main(url: str) -> None:
    """Read until told to stop. What comes is thrown away: a reader's work with it is done elsewhere."""
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    say("begun")
    read = 0.0
    with httpx2.Client(base_url=url, timeout=600) as http:
        while not stop.is_set():
            made = http.post("/bulk/snapshots", json={"table": "jobs"}).raise_for_status().json()
            for part in made["parts"]:
                with http.stream("GET", f"/bulk/snapshots/{made['id']}/parts/{part['part']}") as reply:
                    for _chunk in reply.raise_for_status().iter_raw():
                        pass
                read += 1 / len(made["parts"])
                if stop.is_set():
                    break
            http.delete(f"/bulk/snapshots/{made['id']}")
    say(f"{read:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])

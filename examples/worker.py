"""A worker in plain Python: waits for jobs, works, says so. Run it with the address of a server and the name of a queue.

python examples/worker.py http://127.0.0.1:6790 emails
"""

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def call(method, url, body=None):
    """Call the server and return its answer. The timeout is longer than the longest wait we ask for."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def work(data):
    """Do the work. What it returns is kept as the job's result; what it raises makes the job fail, and be retried."""
    print("working on", data, flush=True)
    if data == "bad":
        raise ValueError("cannot work on this")
    return {"done": True}


def run(server, queue, count=None):
    """Work on jobs, for ever or until so many are done."""
    while count is None or count > 0:
        try:
            answer = call("GET", f"{server}/queues/{queue}/jobs?timeout=20000")
        except OSError as error:  # the server is away; jobs wait for it to come back, and so do we
            print("no answer:", error, flush=True)
            time.sleep(1)
            continue
        if answer["job"] is None:
            continue  # nothing came within 20 seconds
        job, token = answer["job"], answer["token"]
        try:
            outcome, body = "ack", {"result": work(job["data"])}
        except Exception as error:  # whatever went wrong, the queue should know
            outcome, body = "fail", {"error": str(error)}
        try:
            name = urllib.parse.quote(job["id"], safe="")  # an id of the producer's own may hold anything
            call("POST", f"{server}/jobs/{name}/{outcome}", {"token": token, **body})
        except urllib.error.HTTPError as error:  # too late: the lease has ended, and somebody else has the job now
            print("not counted:", json.load(error)["error"], flush=True)
        count = None if count is None else count - 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)

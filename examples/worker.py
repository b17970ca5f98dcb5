"""A worker in plain Python: it waits for jobs, does the work, and acknowledges. Give it a server's address and a queue's name.

python examples/worker.py http://127.0.0.1:6790 emails
"""

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def call(method, url, body=None):
    """Call the server and return its answer. The timeout is longer than the long poll."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def work(data):
    """Do the work. The return value is the job's result. After an exception, the job is retried."""
    print("working on", data, flush=True)
    if data == "bad":
        raise ValueError("cannot work on this")
    return {"done": True}


def run(server, queue, count=None):
    """Work on jobs: without an end, or until ``count`` jobs are done."""
    while count is None or count > 0:
        try:
            answer = call("GET", f"{server}/queues/{queue}/jobs?timeout=20000")
        except OSError as error:  # the server does not answer: try again in a second
            print("no answer:", error, flush=True)
            time.sleep(1)
            continue
        if answer["job"] is None:
            continue  # no job was ready within 20 seconds
        job, token = answer["job"], answer["token"]
        try:
            outcome, body = "ack", {"result": work(job["data"])}
        except Exception as error:  # report every failure to the server
            outcome, body = "fail", {"error": str(error)}
        try:
            name = urllib.parse.quote(job["id"], safe="")  # a custom id may have any characters
            call("POST", f"{server}/jobs/{name}/{outcome}", {"token": token, **body})
        except urllib.error.HTTPError as error:  # too late: the lease has ended, and another worker may have the job
            print("not counted:", json.load(error)["error"], flush=True)
        count = None if count is None else count - 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)

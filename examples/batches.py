"""Messages over the batches door: enqueue some, dequeue them in order of priority, acknowledge or nack them.

python examples/batches.py http://127.0.0.1:6790 leads
"""

import base64
import json
import os
import sys
import urllib.parse
import urllib.request


def call(method, url, body=None):
    """Call the server and return its answer: JSON, or the text OK."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('TOKEN', '')}"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as response:
        text = response.read()
        return json.loads(text) if response.headers["content-type"] == "application/json" else text.decode()


def run(server, topic, namespace="default"):
    """Enqueue three messages and dequeue them. The lowest priority comes first."""
    where = {"namespace": namespace, "topic": topic}
    leads = {"Ada": 5, "Grace": 1, "Joan": 10}
    items = [
        {
            **where,
            "priority": priority,
            "payload": base64.b64encode(json.dumps({"name": name}).encode()).decode(),
            "idempotency_key": f"{topic}/{name}",  # sending this again, after an error for example, changes nothing
        }
        for name, priority in leads.items()
    ]
    ids = call("POST", f"{server}/enqueue", items)
    print("enqueued", len(ids), flush=True)

    done, failed = [], []
    for item in call("GET", f"{server}/dequeue?{urllib.parse.urlencode({**where, 'limit': 10})}"):
        lead = json.loads(base64.b64decode(item["payload"]))
        print("working on", lead["name"], flush=True)
        if lead["name"] == "Joan":
            failed.append({"id": item["id"], **where, "error": "she is out for lunch"})
        else:
            done.append({"id": item["id"], **where})
    assert call("POST", f"{server}/ack", done) == []  # nothing was refused
    for each in failed:  # nack has the same fields; here one request for each message
        assert call("POST", f"{server}/nack", each) == "OK"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run(sys.argv[1], sys.argv[2])

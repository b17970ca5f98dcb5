"""A client of the topics door in plain Python. Copy it into your project. It needs only the package h2 (pip install h2).

    publish("http://127.0.0.1:6790", "foo", b"hello")
    with Subscription("http://127.0.0.1:6790", "foo") as subscription:
        subscription.send("INIT")
        while (message := subscription.receive(timeout=5)) is not None:
            print(message.data)
            subscription.send("ACK")

A subscription sends and receives at the same time. Most HTTP clients read the answer only after they have sent the request, so
this one uses h2. Publishing is a plain request.
"""

import base64
import json
import os
import socket
import ssl
import time
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

ANSWER_S = 10


class Message(NamedTuple):
    """A message, as a subscriber receives it."""

    data: bytes
    dack_count: int  # how often it was delayed with DACK


class NoServer(ConnectionError):
    """There is no server at the address."""

    def __init__(self, url, reason):
        super().__init__(f"There is no server at {url} ({reason}). Start one with: penstock serve")


class Refused(Exception):
    """The server refused the request. The text is the server's."""


def publish(url, topic, data, *, namespace="default", cafile=None):
    """Publish a message. When this returns, it is on the server's disk. ``cafile``: a certificate to trust (--dev-cert)."""
    request = Request(f"{url.rstrip('/')}/publish/{quote(topic, safe='')}", data, _headers(namespace), method="POST")
    context = ssl.create_default_context(cafile=cafile) if url.startswith("https") else None
    try:
        urlopen(request, timeout=ANSWER_S, context=context).close()
    except HTTPError as error:
        raise Refused(f"{error.code}: {error.read().decode()}") from error
    except URLError as error:
        raise NoServer(url, error.reason) from error


def _headers(namespace):
    token = os.environ.get("TOKEN")
    return {"x-namespace": namespace, "content-type": "application/octet-stream"} | (
        {"authorization": f"Bearer {token}"} if token else {}
    )


class Subscription:
    """A subscriber of a topic. It holds one message at a time. When it is closed, the held message returns to the front."""

    def __init__(self, url, topic, *, namespace="default", cafile=None):
        server = urlsplit(url)
        try:
            self._socket = socket.create_connection((server.hostname, server.port or server.scheme), ANSWER_S)
        except OSError as error:
            raise NoServer(url, error) from error
        if server.scheme == "https":
            context = ssl.create_default_context(cafile=cafile)
            context.set_alpn_protocols(["h2"])
            self._socket = context.wrap_socket(self._socket, server_hostname=server.hostname)
        self._status, self._ended, self._received = None, False, b""
        self._http = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._http.initiate_connection()
        self._stream = self._http.get_next_available_stream_id()
        path = f"/subscribe/{quote(topic, safe='')}"
        request = {":method": "POST", ":scheme": server.scheme, ":authority": server.netloc, ":path": path}
        self._http.send_headers(self._stream, [*request.items(), *_headers(namespace).items()])
        self._flush()

    def send(self, command):
        """Send a command: INIT, then ACK, NACK, BACK or DACK seconds. They settle the held message and request the next."""
        self._http.send_data(self._stream, json.dumps(command).encode() + b"\n")
        self._flush()

    def receive(self, timeout=None):
        """Return the next message, None if none arrives within ``timeout`` seconds. Raises Refused for an error."""
        until = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._received and not self._ended:
            try:
                self._receive_data(None if until is None else max(0.001, until - time.monotonic()))
            except TimeoutError:
                return None
        line, _, self._received = self._received.partition(b"\n")
        if self._status != 200:
            raise Refused(f"{self._status}: {line.decode()}")
        if not line:
            raise ConnectionError("the server has ended the stream")
        said = json.loads(line)
        if "error" in said:
            raise Refused(said["error"])
        return Message(base64.b64decode(said.get("msg", "")), said.get("dackCount", 0))

    def close(self):
        """Close the connection. The held message returns to the front, also if its ACK was sent just now and is lost."""
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _flush(self):
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(self._http.data_to_send())

    def _receive_data(self, timeout):
        self._socket.settimeout(timeout)
        received = self._socket.recv(65_536)
        if not received:
            raise ConnectionError("the server has closed the connection")
        for event in self._http.receive_data(received):
            if isinstance(event, events.ResponseReceived):
                self._status = int(dict(event.headers)[":status"])
            elif isinstance(event, events.DataReceived):
                self._received += event.data
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, events.StreamEnded | events.StreamReset | events.ConnectionTerminated):
                self._ended = True
        self._flush()

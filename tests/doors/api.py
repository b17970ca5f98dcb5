"""The jobs door in short words, over a client we did not write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

UNKNOWN_ID = "019ce9d7-6983-7000-946f-48737be2b0f9"
ERROR = tuple[int, str]


class Api:
    """Talks to one queue of a server. Methods return the decoded body and insist on success; ``refused`` on failure."""

    def __init__(self, client: httpx2.Client, queue: str) -> None:
        self.http = client
        self.queue = queue

    def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return self.http.request(method, path.replace("{q}", f"/queues/{self.queue}"), **more)

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        if body is not None:
            more["json"] = body
        response = self.call(method, path, **more)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        decoded = response.json()
        assert decoded["ok"] is True
        return decoded

    def refused(self, method: str, path: str, body: Any = None, **more: Any) -> ERROR:
        if body is not None:
            more["json"] = body
        response = self.call(method, path, **more)
        decoded = response.json()
        assert set(decoded) == {"ok", "error"}, (response.status_code, decoded)
        assert decoded["ok"] is False
        assert response.headers["penstock-error"]
        return response.status_code, decoded["error"]

    def push(self, data: Any = None, **options: Any) -> str:
        job_id: str = self.ok("POST", "{q}/jobs", {"data": data, **options})["id"]
        return job_id

    def pull(self, **query: Any) -> Any:
        return self.ok("GET", "{q}/jobs", params=query)["job"]

    def take(self, **query: Any) -> tuple[str, str]:
        """Pull a job that must be there; return its id and token."""
        reply = self.ok("GET", "{q}/jobs", params=query)
        return reply["job"]["id"], reply["token"]

    def state(self, job_id: str) -> str:
        state: str = self.ok("GET", f"/jobs/{job_id}/state")["state"]
        return state

    def job(self, job_id: str) -> Any:
        return self.ok("GET", f"/jobs/{job_id}")["job"]

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.ok("GET", "{q}/counts")["counts"]
        return counts

    def active(self, **options: Any) -> str:
        """Push a job and pull it."""
        job_id = self.push(**options)
        assert self.pull()["id"] == job_id
        return job_id

    def dead(self, **options: Any) -> str:
        """Push a job and fail it for good."""
        job_id = self.active(maxAttempts=1, **options)
        self.ok("POST", f"/jobs/{job_id}/fail", {"error": "broken"})
        return job_id

    def completed(self, result: Any = None, **options: Any) -> str:
        """Push a job and acknowledge it."""
        job_id = self.active(**options)
        self.ok("POST", f"/jobs/{job_id}/ack", {} if result is None else {"result": result})
        return job_id

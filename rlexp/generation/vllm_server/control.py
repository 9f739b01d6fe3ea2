"""Plain calls to servers: checks, weight transfer, scores. Sampling has its own asynchronous client (client.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import httpx

from rlexp.config.errors import UserError

LOOK = 1.0
"""Seconds between two looks whether a server is there while it is waited for"""
SEEN_DEAD = 8.0
"""Seconds until the death of a launched server is known for certain: vLLM looks every 5 whether its engine is there"""
MESSAGE = 400
"""Characters of a server's answer that an error shows"""


class Unreachable(UserError):
    """A server does not answer."""


class Refused(UserError):
    """A server answered with an error. status: its HTTP code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def reason_of(response: httpx.Response) -> str:
    """What a server says is wrong, shortened."""
    try:
        body = response.json()
        found = body.get("error", body) if isinstance(body, dict) else body
        text = found.get("message", found) if isinstance(found, dict) else found
    except ValueError:
        text = response.text
    return " ".join(str(text).split())[:MESSAGE]


class Control:
    """Blocking calls to one or more servers.

    timeout: seconds one call may take. check: called with seconds of patience after a call that failed, and without while one is under way;
    raises when it knows that a server has died.
    """

    def __init__(self, urls: Sequence[str], timeout: float, check: Callable[[float], None] = lambda patience: None) -> None:
        self.urls, self.timeout, self.check = list(urls), timeout, check
        # each call on a connection of its own: a server closes one that was idle, or on which it answered an error, without saying so, and a call that is
        # sent at that moment is lost. These calls must not be sent twice.
        limits, once = httpx.Limits(max_keepalive_connections=0), {"Connection": "close"}
        self._client = httpx.Client(timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)), limits=limits, headers=once, trust_env=False)
        self._threads = ThreadPoolExecutor(max(8, len(self.urls)), "server-control")
        self._waiting = ThreadPoolExecutor(4 * max(8, len(self.urls)), "server-calls")

    def call(self, url: str, method: str, path: str, body: Any = None, timeout: float | None = None) -> Any:
        """The JSON that a server answers, None for another answer. Raises Unreachable or Refused."""
        limit: Any = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        call = self._waiting.submit(self._client.request, method, f"{url}/{path}", json=body, timeout=limit)
        try:
            while not wait([call], timeout=LOOK).done:
                self.check(0.0)
            response = call.result()
        except httpx.HTTPError as error:
            self.check(SEEN_DEAD)
            raise Unreachable(f"the vLLM server at {url} does not answer {path} ({type(error).__name__}: {error})") from error
        if response.status_code >= 500:  # also what a server says whose engine has died, before it ends
            self.check(SEEN_DEAD)
        if response.status_code >= 400:
            raise Refused(f"the vLLM server at {url} refused {path} with code {response.status_code}: {reason_of(response)}", response.status_code)
        return response.json() if "json" in response.headers.get("content-type", "") else None

    def get(self, path: str) -> list[Any]:
        """GET from every server; the answers in order."""
        return self.each(lambda url: self.call(url, "GET", path))

    def everywhere(self, path: str, body: dict[str, Any] | None = None) -> None:
        """POST to every server at once; returns when all have answered. Raises the first error in their order, after all have ended."""
        self.each(lambda url: self.call(url, "POST", path, body))

    def each(self, work: Callable[[str], Any]) -> list[Any]:
        """Do the same with every server at once; the results in order."""
        futures = [self._threads.submit(work, url) for url in self.urls]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Results of several calls that run beside each other."""
        return list(self._threads.map(work, items))

    def close(self) -> None:
        """Close connections and threads."""
        self._threads.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        self._client.close()

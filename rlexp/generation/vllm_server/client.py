"""Sampling requests to servers: each sent at once, to the server with the least to do, repeated while one is out of reach for a short time."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import httpx

from rlexp.generation.vllm_server.control import Refused, Unreachable, reason_of
from rlexp.generation.vllm_server.wire import Aborted

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
"""Seconds before the first repetition, doubled each time up to the second number"""
LOOK = 1.0
"""Seconds between two looks at servers while they sample"""
KEPT = 3.0
"""Seconds an idle connection is used again: less than the 5 after which vLLM closes it"""
_BUSY = (429, 500, 502, 503, 504)
"""Answers that may be better next time. 500 is what vLLM says when its engine has just died, and then it ends."""


class ServerLost(Unreachable):
    """A server died, or was out of reach for too long."""


class Server:
    """One server as the client sees it."""

    def __init__(self, url: str, dead: Callable[[], Exception | None] = lambda: None) -> None:
        """dead: tells why the server is known to be dead (its process ended), or None."""
        self.url, self.dead = url, dead
        self.load = 0
        """rollouts under way"""
        self.last_answer = -math.inf
        self.last_asked = -math.inf


class Client:
    """Sampling calls. timeout: seconds a server may be out of reach; request_timeout: seconds one call may take on a server that answers."""

    def __init__(self, servers: Sequence[Server], *, timeout: float, request_timeout: float, first: int = 0) -> None:
        """first: where to begin among servers with equal load, so that the ranks of a trainer do not all begin with the same."""
        self.servers, self.timeout, self.request_timeout, self.first = list(servers), timeout, request_timeout, first
        self.retries = 0
        """calls that were repeated so far"""
        self._http: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    def least_loaded(self) -> Server:
        """The server with the fewest rollouts under way."""
        count = len(self.servers)
        return min((self.servers[(self.first + place) % count] for place in range(count)), key=lambda server: server.load)

    async def complete(self, body: dict[str, Any]) -> Any:
        """The answer to a completion request. Raises Refused, ServerLost."""
        server = self.least_loaded()
        if server.load == 0:
            server.last_answer = time.monotonic()
        server.load += body["n"]
        try:
            return await self._watched(server, self._with_retries(server, body))
        finally:
            server.load -= body["n"]

    async def _with_retries(self, server: Server, body: dict[str, Any]) -> Any:
        pause, since = FIRST_PAUSE, None
        while True:
            try:
                return await self._once(server, body)
            except (httpx.TransportError, Aborted, _Busy) as error:
                if isinstance(error, httpx.ReadTimeout):
                    raise ServerLost(
                        f"the vLLM server at {server.url} took more than generation.request_timeout={self.request_timeout:g} seconds for one request"
                    ) from error
                now = time.monotonic()
                since = since or now
                if now - since > self.timeout:
                    raise self._lost(server, error) from error
                self.retries += 1
                log.debug("repeating a request to %s: %s", server.url, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self, server: Server, body: dict[str, Any]) -> Any:
        response = await self._client.post(f"{server.url}/v1/completions", json=body)
        server.last_answer = time.monotonic()
        if response.status_code in _BUSY:
            raise _Busy(f"code {response.status_code}: {reason_of(response)}")
        if response.status_code >= 400:
            raise Refused(f"the vLLM server at {server.url} refused a request with code {response.status_code}: {reason_of(response)}", response.status_code)
        answer = response.json()
        if any(choice["finish_reason"] == "abort" for choice in answer["choices"]):
            raise Aborted(f"the vLLM server at {server.url} gave up a request that was under way")
        return answer

    async def _watched(self, server: Server, work: Awaitable[T]) -> T:
        """The result of the work, or an error as soon as the server is known to be gone. A server that stopped is noticed though its connections stay open."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait([task], timeout=LOOK)
                if done:
                    return task.result()
                if (error := server.dead()) is not None:
                    raise ServerLost(str(error))
                await self._look(server)
        finally:
            task.cancel()

    async def _look(self, server: Server) -> None:
        """Ask a server that has been silent whether it is there; one call for all who wait for it."""
        now = time.monotonic()
        silent = now - server.last_answer
        if silent > self.timeout:
            raise self._lost(server, None)
        if min(silent, now - server.last_asked) < min(5.0, self.timeout / 4):
            return
        server.last_asked = now
        try:
            response = await self._client.get(f"{server.url}/health", timeout=max(1.0, self.timeout / 4))
        except httpx.TransportError:
            return
        if response.status_code == 200:
            server.last_answer = time.monotonic()

    def _lost(self, server: Server, error: Exception | None) -> ServerLost:
        detail = f" ({type(error).__name__}: {error})" if error is not None and str(error) else ""
        return ServerLost(f"the vLLM server at {server.url} has been out of reach for generation.timeout={self.timeout:g} seconds{detail}")

    @property
    def _client(self) -> httpx.AsyncClient:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._http[0] is not loop:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEPT)
            timeout = httpx.Timeout(self.request_timeout, connect=10.0, pool=None)
            self._http = (loop, httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False))
        return self._http[1]


class _Busy(RuntimeError):
    """An answer that may be better next time."""

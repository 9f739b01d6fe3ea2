"""A server that speaks vLLM's endpoints without a model, for tests of what happens around one: `python server_fake.py --port P`.

It answers completions with token ids counted up from the seed, and can be told to misbehave: POST /fake {"hang": 2, "die_at": "update_weights"}.
A thread of the test process holds it (`FakeServer`), or a process of its own, which takes the flags of the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CONTEXT = 64


class State:
    """What the server knows and was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        """(path with its query, body) of every POST"""
        self.version = "default"
        self.paused = self.updating = False
        self.status: dict[str, int] = {}
        """path -> code it answers from now on"""
        self.once: dict[str, list[int]] = {}
        """path -> codes of the next calls, 0: as usual"""
        self.hang = 0.0
        """seconds a completion takes"""
        self.gives_up = 0
        """texts to be scored that it gives up, as one that is sent weights does"""
        self.silent = False
        """accepts connections and says nothing"""
        self.abrupt = False
        """closes the connection on which it answered an error, without saying so, as vLLM's HTTP server does; what is sent on it meanwhile is lost"""
        self.alone = False
        """in a process of its own, which may be told to misbehave and to kill itself; in that of a test a stray call must do neither"""
        self.die_at: str | None = None
        """path at whose next call the process kills itself"""
        self.deaf_at: str | None = None
        """path at whose next call the server listens no longer, and answers nothing"""
        self.ends_at: str | None = None
        """path at whose next call it answers an error and, two seconds later, ends"""
        self.die_after = 1
        """at the how many-th call"""
        self.died: Path | None = None
        """made when it dies; if it is there, it does not die again"""
        self.info: dict[str, Any] = {
            "vllm_config": {
                "model_config": {"logprobs_mode": "processed_logprobs", "max_logprobs": -1, "dtype": "torch.float32"},
                "weight_transfer_config": {"backend": "rlexp"},
                "lora_config": None,
            }
        }
        self.sizes: dict[str, int] | None = None
        self.running = self.most_running = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""

    def answer(self, body: Any, code: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if code >= 500 and self.state.abrupt:
            self.connection.recv(1)  # until the client uses it again, or closes it
            self.close_connection = True

    def prepared(self, path: str) -> bool:
        """Misbehave as told. Returns whether the request was answered by that."""
        state = self.state
        while state.silent:
            time.sleep(0.05)
        if state.deaf_at == path:  # as vLLM when its engine has died: it listens no longer and waits for its open connections
            self.server.socket.close()
            time.sleep(600)
        if state.ends_at == path and state.alone:  # as vLLM too, when the call comes before it has noticed the death itself
            threading.Timer(2.0, os._exit, (1,)).start()
            self.answer({"error": {"message": "the engine is dead"}}, 500)
            return True
        if state.die_at == path and state.alone:
            state.die_after -= 1
            if state.die_after <= 0 and not (state.died and state.died.exists()):
                if state.died:
                    state.died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        with state.lock:
            code = state.once[path].pop(0) if state.once.get(path) else state.status.get(path, 0)
        if code:
            self.answer({"error": {"message": f"told to answer {code}"}}, code)
        return bool(code)

    def do_GET(self) -> None:
        state, path = self.state, urlsplit(self.path).path.lstrip("/")
        if self.prepared(path):
            return
        answers = {
            "health": {},
            "v1/models": {"data": [{"id": "model", "root": "model", "max_model_len": CONTEXT}]},
            "server_info": state.info,
            "weight_info": {"weight_version": state.version},
            "is_paused": {"is_paused": state.paused},
            "get_world_size": {"world_size": 2},
            "version": {"version": "0.31.0"},
        }
        self.answer(answers.get(path, {"detail": "Not Found"}), 200 if path in answers else 404)

    def do_POST(self) -> None:
        state, path = self.state, urlsplit(self.path).path.lstrip("/")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        if path == "fake" and state.alone:
            for name, value in body.items():
                setattr(state, name, value)
            self.answer({})
            return
        with state.lock:
            state.calls.append((self.path.lstrip("/"), body))
        if self.prepared(path):
            return
        if path == "v1/completions":
            self.complete(body)
        elif path == "collective_rpc":
            self.answer({"results": [state.sizes]} if state.sizes is not None else {"detail": "no such method"}, 200 if state.sizes is not None else 500)
        else:
            self.weights(path, body or {})

    def weights(self, path: str, body: dict[str, Any]) -> None:
        state = self.state
        if path == "start_weight_update" and state.updating:
            self.answer({"error": {"message": "a weight update is already active"}}, 500)
            return
        if path in ("start_weight_update", "finish_weight_update"):
            state.updating = path.startswith("start")
        if path in ("pause", "resume"):
            state.paused = path == "pause"
        state.version = body.get("weight_version") or body.get("new_version") or state.version
        self.answer({})

    def complete(self, body: dict[str, Any]) -> None:
        state = self.state
        with state.lock:
            state.running += body.get("n", 1)
            state.most_running = max(state.most_running, state.running)
        time.sleep(state.hang)
        with state.lock:
            state.running -= body.get("n", 1)
        if body.get("prompt_logprobs") is not None:
            listed = [None, *({str(token): {"logprob": -0.5, "rank": 1}} for token in body["prompt"][1:])]
            state.gives_up -= 1
            how = {"finish_reason": "abort", "prompt_logprobs": listed[:1]} if state.gives_up >= 0 else {"finish_reason": "length", "prompt_logprobs": listed}
            self.answer({"choices": [{"index": 0, **how}]})
            return
        self.answer({"choices": [self.choice(body, number) for number in range(body.get("n", 1))]})

    def choice(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        """As many tokens as were asked for: digits that the seed gives, the last one EOS if the seed says so."""
        seed = body.get("seed", 0) + number
        ids = [5 + (seed + place) % 10 for place in range(body["max_tokens"])]
        stop = body.get("stop_token_ids") or []
        ended = bool(stop) and seed % 2 == 0
        if ended:
            ids[-1] = stop[0]
        logprobs = {
            "token_logprobs": [-0.25] * len(ids),
            "tokens": [f"token_id:{token}" for token in ids],
            "top_logprobs": [{f"token_id:{token}": -0.25} for token in ids],
        }
        return {"index": number, "finish_reason": "stop" if ended else "length", "stop_reason": None, "token_ids": ids, "logprobs": logprobs}


def serve(state: State, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server that is bound and not started."""
    handler = type("Bound", (Handler,), {"state": state})
    server = Quiet((host, port), handler)
    server.daemon_threads = True
    return server


class Quiet(ThreadingHTTPServer):
    """A client that hangs up is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is printed."""


class FakeServer:
    """A server in a thread of this process."""

    def __init__(self) -> None:
        self.state = State()
        self._server = serve(self.state)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def paths(self) -> list[str]:
        """Of every POST so far."""
        return [path for path, _ in self.state.calls]

    def bodies(self, path: str) -> list[Any]:
        """Of every POST to a path."""
        return [body for called, body in self.state.calls if called == path]

    def close(self) -> None:
        """Connections are refused from now on."""
        self.state.silent = False
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start-seconds", type=float, default=0.0)
    parser.add_argument("--shards", type=int, default=0, help="say so many times, each 0.3 s after the one before, that some of the model is loaded")
    parser.add_argument("--fail", help="say this and end with code 3 instead of starting")
    parser.add_argument("--die-at", help="kill itself at a call of this path")
    parser.add_argument("--die-after", type=int, default=1)
    parser.add_argument("--died", type=Path, help="a file that is made then; where it is already there, this server lives")
    parser.add_argument("--shared-memory", action="store_true", help="hold a block of it, as vLLM's processes do")
    parser.add_argument("--child", action="store_true", help="start a child that ignores SIGTERM, as an engine process may")
    options, _ = parser.parse_known_args()
    if options.fail:
        raise SystemExit(print(options.fail, flush=True) or 3)
    if options.shared_memory:
        block = shared_memory.SharedMemory(create=True, size=4096)
        print(f"block /dev/shm/{block.name}", flush=True)
    if options.child and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(f"child {os.getpid()}", flush=True)
        time.sleep(600)
    time.sleep(options.start_seconds)
    for shard in range(options.shards):
        print(f"Loading safetensors checkpoint shards: {shard}/{options.shards}", flush=True)
        time.sleep(0.3)
    print("listening", flush=True)
    state = State()
    state.alone = True
    state.die_at, state.die_after, state.died = options.die_at, options.die_after, options.died
    serve(state, options.host, options.port).serve_forever()

"""
A model of a few lines behind the interfaces that real agents speak: Anthropic, OpenAI (both forms) and Google.

It asks for one shell command, then says that it is done. Everything an agent sent is kept. What else happens to a
request is played from a list, one word for each request that has tools: `work` as above, an HTTP status, `cut` for a
stream that breaks in the middle, `hang` for one that stays silent until the server is closed.
"""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

#: What the model asks for, told apart by what it is asked for first and later.
COMMAND = "echo step >> stub.txt"
ANSWER = "All done."
_KINDS = {401: "authentication_error", 400: "invalid_request_error", 429: "rate_limit_error", 529: "overloaded_error"}
_IDS = iter(range(10**9))
#: Names that agents have for the tool that runs a line of shell -> its arguments.
_SHELLS = {
    "Bash": lambda line: {"command": line, "description": "a step"},
    "bash": lambda line: {"command": line, "description": "a step"},
    "exec_command": lambda line: {"cmd": line},
    "shell_command": lambda line: {"command": line},
    "shell": lambda line: {"command": ["sh", "-c", line]},
    "run_shell_command": lambda line: {"command": line, "description": "a step"},
}


class StubModel:
    """The server; `with StubModel() as model` has it listen on this machine, at `model.url`."""

    def __init__(self, *plays: str) -> None:
        self.plays = list(plays)
        self.command = COMMAND  #: what it asks for
        self.requests: list[dict] = []  #: every request that counts, as it was sent
        self.hangs = threading.Event()  #: somebody waits for an answer that does not come
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def next_play(self, body: dict) -> str:
        """Return what is to happen to a request; those of no consequence (titles, summaries) are answered only."""
        if not _tools(body) and not _is_aider(body):
            return "answer"
        with self._lock:
            self.requests.append(body)
            return self.plays.pop(0) if self.plays else "work"

    def wait_for_ever(self) -> None:
        """Keep an agent waiting until the server is closed."""
        self.hangs.set()
        self._released.wait()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, model: StubModel, *args: object) -> None:
        self._model = model
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_GET(self) -> None:
        self._send(200, b'{"models": [], "data": []}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if "count" in self.path.lower():
            self._send(200, b'{"input_tokens": 10, "totalTokens": 10}')
            return
        play = self._model.next_play(body)
        if play.isdigit():
            self._send(int(play), _error(int(play)))
        elif play == "hang":
            self._model.wait_for_ever()
            self.close_connection = True
        else:
            pieces = _speaker(self.path)(body, None if play == "answer" else self._model.command)
            self._say(pieces, is_cut=play == "cut")

    def _say(self, pieces: list[tuple[str, dict]], *, is_cut: bool) -> None:
        if len(pieces) == 1 and "alt=sse" not in self.path:
            self._send(200, json.dumps(pieces[0][1]).encode()[: 20 if is_cut else None])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for name, data in pieces[: len(pieces) // 2] if is_cut else pieces:
            event = f"event: {name}\n" if name else ""
            self.wfile.write(f"{event}data: {json.dumps(data)}\n\n".encode())
        if is_cut and pieces[0][0] == "message_start":
            self.wfile.write(b"event: error\ndata: " + _error(529) + b"\n\n")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: an agent that hangs up is no news."""


def _error(status: int) -> bytes:
    kind = _KINDS.get(status, "api_error")
    error = {"type": kind, "message": f"stub says {status}", "code": status, "status": kind.upper()}
    return json.dumps({"type": "error", "error": error}).encode()


def _tools(body: dict) -> list[str]:
    """Return the names of the tools a request offers, whichever interface it came through."""
    result = [tool.get("name") or (tool.get("function") or {}).get("name") for tool in body.get("tools") or []]
    google = [one.get("name") for tool in body.get("tools") or [] for one in tool.get("functionDeclarations") or []]
    return [name for name in (*result, *google) if name]


def _is_aider(body: dict) -> bool:
    return "SEARCH/REPLACE" in json.dumps(body) or "file listing" in json.dumps(body)


def _is_answered(body: dict) -> bool:
    """Say whether what a tool said is the last thing in the conversation: then nothing more is asked for."""
    turns = body.get("messages") or body.get("input") or body.get("contents") or [{}]
    last = json.dumps(turns[-1])
    return bool(re.search(r'"(tool_result|function_call_output|functionResponse|custom_tool_call_output)"', last))


def _call(body: dict, command: str | None) -> tuple[str, dict] | None:
    """Return the tool to use and its arguments, None to say the answer."""
    name = next((name for name in _tools(body) if name in _SHELLS), None)
    if command is None or name is None or _is_answered(body):
        return None
    return name, _SHELLS[name](command)


def _speaker(path: str):
    if "generateContent" in path or "GenerateContent" in path:
        return _google
    if path.endswith("/responses"):
        return _responses
    return _chat if "chat/completions" in path else _anthropic


def _anthropic(body: dict, command: str | None) -> list[tuple[str, dict]]:
    call = _call(body, command)
    usage = {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    head = {"id": f"msg_{next(_IDS)}", "type": "message", "role": "assistant", "model": body.get("model", "stub")}
    block: dict = {"type": "text", "text": ""}
    delta: dict = {"type": "text_delta", "text": ANSWER}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{next(_IDS)}", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    end = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        whole = {**block, "input": call[1]} if call else {**block, "text": ANSWER}
        return [("", {**head, **end, "content": [whole], "usage": {**usage, "output_tokens": 20}})]
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[dict] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


def _responses(body: dict, command: str | None) -> list[tuple[str, dict]]:
    call, number = _call(body, command), next(_IDS)
    said = [{"type": "output_text", "text": ANSWER, "annotations": []}]
    item: dict = {"type": "message", "id": f"item_{number}", "role": "assistant", "content": said}
    if call:
        item = {"type": "function_call", "id": f"item_{number}", "call_id": f"call_{number}", "name": call[0]}
        item["arguments"] = json.dumps(call[1])
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    events: list[dict] = [
        {"type": "response.created", "response": {"id": f"resp_{number}"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": f"resp_{number}", "usage": usage}},
    ]
    return [(event["type"], event) for event in events]


def _chat(body: dict, _command: str | None) -> list[tuple[str, dict]]:
    """Answer as aider wants it: a whole file in a fence, which it writes itself, and not as a stream."""
    message = {"role": "assistant", "content": f"stub.txt\n```\nstep {next(_IDS)}\n```\n"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    head = {"id": "chat_1", "object": "chat.completion", "created": 1, "model": body.get("model", "stub")}
    return [("", {**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})]


def _google(body: dict, command: str | None) -> list[tuple[str, dict]]:
    call = _call(body, command)
    part: dict = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": ANSWER}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return [("", {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-stub"})]

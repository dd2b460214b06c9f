"""A small client of a YAML language server over stdio: what an editor would ask and be told."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path

TIMEOUT_S = 60


class LanguageServer:
    """Speaks the language server protocol with the real `yaml-language-server`."""

    def __init__(self, node: str, script: Path, root: Path):
        self.process = subprocess.Popen(
            [node, str(script), "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=root,
        )
        self.root = root
        self.messages: queue.Queue = queue.Queue()
        self.kept: list[dict] = []
        self.n_requests = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.settings = {
            "yaml": {"validate": True, "hover": True, "completion": True,
                     "schemaStore": {"enable": False}},
            "http": {},
        }  # fmt: skip
        self.request(
            "initialize",
            processId=None,
            rootUri=root.as_uri(),
            workspaceFolders=[{"uri": root.as_uri(), "name": "project"}],
            capabilities={
                "textDocument": {"hover": {"contentFormat": ["markdown"]}},
                "workspace": {"configuration": True},
            },
        )
        self.notify("initialized")
        self.notify("workspace/didChangeConfiguration", settings=self.settings)

    def _read(self):
        stream = self.process.stdout
        while line := stream.readline():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
                while stream.readline().strip():
                    pass
                self.messages.put(json.loads(stream.read(length)))

    def _send(self, message: dict):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, **params):
        self._send({"method": method, "params": params})

    def request(self, method: str, **params):
        self.n_requests += 1
        number = self.n_requests
        self._send({"id": number, "method": method, "params": params})
        answer = self._wait(lambda message: message.get("id") == number and "method" not in message)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, is_wanted):
        while True:
            message = self.messages.get(timeout=TIMEOUT_S)
            if "id" in message and "method" in message:
                self._answer(message)
            elif is_wanted(message):
                return message

    def _answer(self, message: dict):
        """Answers what the server asks of an editor: its settings, and nothing else."""
        result = None
        if message["method"] == "workspace/configuration":
            items = message["params"]["items"]
            result = [self.settings.get(item.get("section") or "") for item in items]
        self._send({"id": message["id"], "result": result})

    # --- what an editor does --------------------------------------------------------------------

    def open(self, name: str, text: str) -> list[dict]:
        """Opens a document and returns the squiggles it gets."""
        path = self.root / name
        path.write_text(text)
        document = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.notify("textDocument/didOpen", textDocument=document)
        found = self._wait(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"]["uri"] == path.as_uri()
            )
        )
        return found["params"]["diagnostics"]

    def _at(self, method: str, name: str, line: int, character: int):
        uri = (self.root / name).as_uri()
        position = {"line": line, "character": character}
        return self.request(f"textDocument/{method}", textDocument={"uri": uri}, position=position)

    def complete(self, name: str, line: int, character: int) -> dict[str, dict]:
        """Returns what the editor offers at a place, by label."""
        found = self._at("completion", name, line, character)
        return {item["label"]: item for item in found["items"]}

    def hover(self, name: str, line: int, character: int) -> str:
        """Returns the text that the editor shows over a place."""
        found = self._at("hover", name, line, character)
        return json.dumps(found["contents"]) if found else ""

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.reader.join()
        self.process.stdout.close()

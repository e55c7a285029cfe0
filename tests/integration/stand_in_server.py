"""Stands in for the process of a vLLM server: a leader that answers with its key, an engine beside it, both watch the owner.

Run in the place of an interpreter, as `stand_in_server.py -m vllm... --port N`; it understands `-c`, too.
"""

import http.server
import json
import os
import sys
import time
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "grpo_core/generation/vllm/plugin"
BODIES = {"/health": "", "/weight_info": json.dumps({"weight_version": "abc"})}


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        has_key = self.headers.get("authorization") == f"Bearer {os.environ['GRPO_VLLM_KEY']}"
        body = BODIES[self.path].encode()
        self.send_response(200 if has_key else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def main(arguments: list[str]) -> None:
    if arguments[0] == "-c":
        return
    sys.path.insert(0, str(PLUGIN))
    from grpo_vllm.owner import end_with_owner

    if "--no-such-model" in arguments[arguments.index("--model") + 1]:
        sys.exit("no such model")
    is_engine = os.fork() == 0
    end_with_owner()
    if is_engine:
        time.sleep(600)
    else:
        port = int(arguments[arguments.index("--port") + 1])
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])

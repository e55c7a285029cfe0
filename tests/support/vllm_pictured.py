"""A server that answers as vLLM does where prompts have images: its protocol, with transformers' model and processor."""

import base64
import http.server
import io
import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jinja2 import Environment
from PIL import Image
from safetensors.torch import load_file, save_file


class PicturedServer:
    """What the server holds, and what is wrong with it."""

    def __init__(self, model: Any, processor: Any) -> None:
        """Hold a model of its own."""
        self.model, self.processor, self.version = model, processor, "default"
        self.bodies: list[dict[str, Any]] = []
        self.kept: dict[str, Any] = {}
        """What the tower has made, by images, as vLLM's cache of encoders has it."""
        self.is_blind = self.keeps_tower = self.drops_a_token = False

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """Return what is answered."""
        if path == "/v1/models":
            return {"data": [{"id": "policy", "max_model_len": 1000}]}
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/reset_encoder_cache":
            self.kept.clear()
        if path == "/update_weights":
            self._load(body["update_info"]["path"])
        if path == "/finish_weight_update":
            self.version = body["weight_version"]
        if path == "/v1/completions":
            return self._completed(torch.tensor([body["prompt"]]), {}, body)
        if path == "/v1/chat/completions":
            return self._chat(body)
        return {"success": True}

    @torch.no_grad()
    def _load(self, path: str) -> None:
        with tempfile.TemporaryDirectory() as folder:  # by the names of a model's folder, which transformers reads
            self.model.config.save_pretrained(folder)
            save_file(load_file(path), f"{folder}/model.safetensors", metadata={"format": "pt"})
            given = type(self.model).from_pretrained(folder).eval()
        if self.keeps_tower:
            given.model.vision_tower = self.model.model.vision_tower
        self.model = given

    def _chat(self, body: dict[str, Any]) -> Any:
        self.bodies.append(body)
        text = Environment(autoescape=False).from_string(body["chat_template"]).render(messages=body["messages"])
        urls = [part["image_url"]["url"] for turn in body["messages"] for part in turn["content"] if "image_url" in part]
        images = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
        how = {"add_special_tokens": body["add_special_tokens"], "return_tensors": "pt"}
        given = dict(self.processor(text=[text], images=[images], **how))
        ids, pixels = given["input_ids"], given["pixel_values"]
        with torch.no_grad():
            key = "".join(urls)
            if key not in self.kept:
                self.kept[key] = self.model.model.get_image_features(pixel_values=pixels, return_dict=True)
            seen = {} if self.is_blind else {"mm_encoder_outputs": {"image": self.kept[key]}}
            answer = self._completed(ids, seen, body)
        return {**answer, "prompt_token_ids": answer["prompt_token_ids"][int(self.drops_a_token) :]}

    @torch.no_grad()
    def _completed(self, ids: torch.Tensor, seen: dict[str, Any], body: dict[str, Any]) -> Any:
        def logps(ids: torch.Tensor, temperature: float) -> torch.Tensor:
            found: torch.Tensor = (self.model(input_ids=ids, **seen).logits[0].float() / temperature).log_softmax(-1)
            return found

        prompt = ids[0].tolist()
        if "prompt_logprobs" in body:
            row = logps(ids, 1.0)
            of_prompt = [{str(token): {"logprob": float(row[at, token])}} for at, token in enumerate(prompt[1:])]
            measured = {"prompt_logprobs": [None, *of_prompt]}
            return {**measured, "prompt_token_ids": prompt, "choices": [measured]}
        random, tokens, drawn = torch.Generator().manual_seed(body["seed"]), list[int](), list[float]()
        while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in body["stop_token_ids"]):
            row = logps(torch.cat([ids, torch.tensor([tokens], dtype=torch.long)], dim=1), body["temperature"])[-1]
            tokens.append(int(torch.multinomial(row.exp(), 1, generator=random)))
            drawn.append(float(row[tokens[-1]]))
        content = {"content": [{"logprob": logp} for logp in drawn], "token_logprobs": drawn}
        return {
            "prompt_token_ids": prompt,
            "choices": [{"token_ids": tokens, "logprobs": content, "finish_reason": "length"}],
        }


@contextmanager
def serving(server: PicturedServer) -> Iterator[str]:
    """Serve on loopback; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            content = json.dumps(server.answer(self.path.partition("?")[0], body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Sequence[object]) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()

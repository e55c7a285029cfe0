"""A page of another site: it tries every request in every way that a browser has, and notes what it learns."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PAGE = """<!doctype html><title>a harmless page</title><body><script>
const within = (seconds, promise, otherwise) =>
  Promise.race([promise, new Promise(resolve => setTimeout(() => resolve(otherwise), 1000 * seconds))]);

async function byFetch(attack, mode, type) {
  const options = {method: attack.method, mode, credentials: "include"};
  if (attack.body !== null && attack.method !== "GET")
    options.body = new Blob([JSON.stringify(attack.body)], type ? {type} : {});
  try {
    const answer = await fetch(attack.url, options);
    return answer.type === "opaque" ? "unreadable" : `read ${answer.status} ${await answer.text()}`;
  } catch (error) { return "unreadable"; }
}

function byForm(attack) {
  const frame = document.createElement("iframe");
  frame.name = "frame" + document.querySelectorAll("iframe").length;
  document.body.appendChild(frame);
  const form = document.body.appendChild(document.createElement("form"));
  Object.assign(form, {method: "POST", enctype: "text/plain", action: attack.url, target: frame.name});
  const json = JSON.stringify(attack.body);
  const [name, value] = json.startsWith("{") ? [json.slice(0, -1) + (json === "{}" ? "" : ",") + '"_":"', '"}'] : [json, ""];
  form.appendChild(Object.assign(document.createElement("input"), {name, value}));
  return within(10, new Promise(resolve => {
    frame.onload = () => {
      try { resolve("read " + frame.contentDocument.body.innerText); } catch (error) { resolve("unreadable"); }
    };
    form.submit();
  }), "unreadable");
}

function bySocket(url, protocols, first) {
  return within(60, new Promise(resolve => {
    const socket = new WebSocket(url, protocols);
    socket.onopen = () => { first.forEach(message => socket.send(JSON.stringify(message))); };
    socket.onmessage = message => resolve("read " + message.data);
    socket.onclose = () => resolve("closed");
  }), "left open");
}

function byTag(url) {
  return within(60, new Promise(resolve => {
    const script = document.createElement("script");
    script.onload = () => resolve("read as a script");
    script.onerror = () => resolve("unreadable");
    script.src = url;
    document.body.appendChild(script);
  }), "no answer");
}

async function tryAll(attacks, sockets, event) {
  const tries = [];
  const note = (name, way, trying) => tries.push(trying.then(what => ({name, way, what})));
  for (const attack of attacks) {
    note(attack.name, "cors json", byFetch(attack, "cors", "application/json"));
    note(attack.name, "cors plain", byFetch(attack, "cors", "text/plain"));
    note(attack.name, "cors", byFetch(attack, "cors", null));
    if (attack.method === "GET") note(attack.name, "script", byTag(attack.url));
    if (["GET", "POST"].includes(attack.method)) {
      note(attack.name, "no-cors", byFetch(attack, "no-cors", null));
      note(attack.name, "no-cors plain", byFetch(attack, "no-cors", "text/plain"));
    }
    if (attack.method === "POST") note(attack.name, "form", byForm(attack));
  }
  for (const url of sockets) {
    note(url, "socket", bySocket(url, [], [event]));
    note(url, "prefect's socket", bySocket(url, ["prefect"], [{type: "auth", token: ""}, event]));
  }
  return Promise.all(tries);
}
</script>"""


@contextmanager
def serving_page() -> Iterator[int]:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.end_headers()
        request.wfile.write(PAGE.encode())

    with serving(answer) as port:
        yield port


@contextmanager
def serving(answer: Any) -> Iterator[int]:
    """Serve on a free port of this machine with a function that takes each request; yield the port."""
    quiet = {"do_GET": answer, "do_POST": answer, "log_message": lambda *_: None}
    handler = type("Handler", (http.server.BaseHTTPRequestHandler,), quiet)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()

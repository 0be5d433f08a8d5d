"""Secrets that a test can search for, and a server that expects one of them in the query string of its URLs."""

import base64
import json
import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

from tests.conftest import paragraph

NAMES = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD")


def secrets():
    return {name: f"swordfish/{uuid.uuid4().hex}" for name in NAMES}


def forms(secret):
    """Return the forms in which a secret may appear: unchanged, percent-encoded, in hex, and in base64 at any
    offset.
    """
    found = {secret, quote(secret, safe=""), secret.encode().hex()}
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret.encode())
        # The first and last characters depend on what stands around the secret.
        found.add(encoded[4 if offset else 0 : -4].decode())
    return found


def places(secrets, texts, files):
    """Return the texts and the files that contain any of the secrets in any form."""
    wanted = [form for secret in secrets for form in forms(secret)]
    shown = [text for text in texts if any(form in text for form in wanted)]
    held = {path: path.read_bytes() for path in files}
    return shown, [path for path, data in held.items() if any(form.encode() in data for form in wanted)]


@contextmanager
def signed_pages(signature, fails_at):
    """Serve 20 documents at http://127.0.0.1:PORT/ANY/far.jsonl?sig=SIGNATURE, and yield the port.

    For each path, GET request number `fails_at` is answered with an error.
    """
    lines = [
        json.dumps({"text": paragraph(1000 + number), "url": f"https://far.example/{number}"}) for number in range(20)
    ]
    body, asked = "\n".join(lines).encode(), Counter()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            asked[self.path] += 1
            self.answer(500 if asked[self.path] == fails_at else 200, body)

        def do_HEAD(self):
            self.answer(200, b"")

        def answer(self, status, content):
            if parse_qs(urlsplit(self.path).query) != {"sig": [signature]}:
                status = 403
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(content if status == 200 else b"x" * len(body))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def add_signed_source(corpus_file, port, place, signature):
    """Add a source `far` to a corpus file, at the path `place` on the server of `signed_pages`."""
    url = f"http://127.0.0.1:{port}/{place}/far.jsonl?sig={quote(signature, safe='')}"
    source = f"{{name: far, root: '{url}', format: jsonl, remote: {{schemes: [http], allow_private: true}}}}"
    corpus_file.write_text(corpus_file.read_text().replace("sources:\n", f"sources:\n  - {source}\n"))

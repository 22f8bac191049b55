# SPDX-License-Identifier: BSD-2-Clause
"""A model behind HTTP. GET /N answers with the bytes of what the model makes of the N-th input and
of all requests before it: what it keeps on the GPU changes with each. It says "ready PID PORT" and
serves until its input ends.

work_served.py MIB   of weights"""
import http.server
import os
import sys
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402

WIDTH, ROWS = 4096, 8
GPU = torch.cuda.is_available()
DEVICE, TYPE = ("cuda", torch.float16) if GPU else ("cpu", torch.float32)


class Model:
    def __init__(self, mib):
        torch.manual_seed(7)
        bytes_each = WIDTH * WIDTH * torch.finfo(TYPE).bits // 8
        self.layers = [torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=TYPE) / WIDTH ** 0.5
                       for _ in range(max(1, (mib << 20) // bytes_each))]
        self.kept = torch.zeros(ROWS, WIDTH, device=DEVICE, dtype=TYPE)
        self.lock = threading.Lock()

    @torch.no_grad()
    def answer(self, number):
        host = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(number))
        with self.lock:
            x = host.to(DEVICE, TYPE)
            for layer in self.layers:
                x = torch.tanh(x @ layer)
            self.kept = self.kept / 2 + x
            return self.kept.cpu().numpy().tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # pylint: disable=invalid-name
        body = self.server.model.answer(int(self.path.strip("/")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.model = Model(int(sys.argv[1]))
    server.model.answer(0)
    if GPU:
        torch.cuda.synchronize()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", os.getpid(), server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


main()

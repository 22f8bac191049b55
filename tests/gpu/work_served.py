# SPDX-License-Identifier: BSD-2-Clause
"""A model behind HTTP. GET /N answers with the bytes of what the model makes of the N-th input and
of all requests before it: what it keeps on the GPU changes with each. It says "ready PID PORT" and
serves until its input ends. On two GPUs its layers are on either by turns.

work_served.py MIB [GPUS]   MIB: of weights"""
import http.server
import os
import sys
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402

WIDTH, ROWS = 4096, 8
GPU = torch.cuda.is_available()
TYPE = torch.float16 if GPU else torch.float32
GPUS = int(sys.argv[2]) if len(sys.argv) > 2 else 1
DEVICES = [torch.device("cuda", i) for i in range(GPUS)] if GPU else [torch.device("cpu")]


class Model:
    def __init__(self, mib):
        torch.manual_seed(7)
        bytes_each = WIDTH * WIDTH * torch.finfo(TYPE).bits // 8
        self.layers = [torch.randn(WIDTH, WIDTH, device=DEVICES[i % len(DEVICES)], dtype=TYPE) /
                       WIDTH ** 0.5 for i in range(max(1, (mib << 20) // bytes_each))]
        self.kept = torch.zeros(ROWS, WIDTH, device=DEVICES[-1], dtype=TYPE)
        self.lock = threading.Lock()

    @torch.no_grad()
    def answer(self, number):
        host = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(number))
        with self.lock:
            x = host.to(TYPE)
            for layer in self.layers:
                x = torch.tanh(x.to(layer.device) @ layer)
            self.kept = self.kept / 2 + x.to(DEVICES[-1])
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
    for device in DEVICES if GPU else []:
        torch.cuda.synchronize(device)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", os.getpid(), server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


main()

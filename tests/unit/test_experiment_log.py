"""An experiment log whose server dies and comes back."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def answering(port: int, seen: list[dict]) -> ThreadingHTTPServer:
    """A server that answers as MLflow's does to a run's calls."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path.rpartition("/")[2], **body})
            info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING"}
            info |= {"artifact_uri": "a", "lifecycle_stage": "active", "start_time": 1}
            answer = json.dumps({"run": {"info": info, "data": {}}, "run_info": info}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PATCH = do_POST

        def log_message(self, *words: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def ended(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


def test_what_a_dead_server_missed_reaches_it_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from avatar_v.callbacks import experiment_log  # mlflow takes seconds where tests are collected
    from avatar_v.callbacks.experiment_log import PatientMLFlowLogger

    monkeypatch.setattr(experiment_log, "PAUSES_S", (0.2,))
    for name in experiment_log.PATIENCE:
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[dict] = []
    server = answering(port, seen)
    logger = PatientMLFlowLogger(tracking_uri=f"http://127.0.0.1:{port}", run_id="r")
    seen.clear()
    monkeypatch.setattr(logger, "_initialized", True)  # the run is there: get_run needs no answer
    monkeypatch.setattr(logger, "_experiment_id", "1")
    logger.log_metrics({"loss": 1.0}, 1)
    ended(server)
    begin = time.monotonic()
    for step in range(2, 50):
        logger.log_metrics({"loss": float(step)}, step)
    assert time.monotonic() - begin < 5
    again = answering(port, seen)
    time.sleep(0.3)
    logger.log_metrics({"loss": 50.0}, 50)
    ended(again)
    steps = [m["step"] for call in seen if call["path"] == "log-batch" for m in call["metrics"]]
    assert [int(step) for step in steps] == list(range(1, 51))
    told = capsys.readouterr().err
    assert told.count("warning: MLflow does not answer") == 1
    assert told.count("MLflow answers again") == 1
    logger.finalize()  # the server is away again: one word, no error
    assert "did not reach MLflow" in capsys.readouterr().err

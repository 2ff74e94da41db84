"""``meshc serve`` in a process of its own, and what the system says of it."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from served import LIMIT_S

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"


def endless(folder):
    """A copy of the tiny model whose answers never end by themselves."""
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


class ServingProcess:
    """A server of a tiny model, or of a program that is ``compiled``."""

    def __init__(
        self, model=TINY, port=0, batch=3, seq=200, finish_s=60, environment=None, compiled=False
    ):
        command = [sys.executable, "-m", "meshc", "serve", str(model), "--port", str(port)]
        if not compiled:
            command += ["--mesh", "2x2", "--chunk", "16", "--batch", str(batch), "--seq", str(seq)]
        command += ["--finish-s", str(finish_s)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, env=env, **pipes)
        self._complaints = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.stopped()
        self.name, self.address = line.split()[1], line.split()[-1]
        self.port = int(self.address.split(":")[2].split("/")[0])

    def _read(self):
        for line in self.process.stderr:
            self._complaints.append(line)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.stopped()

    def stopped(self, seconds=LIMIT_S):
        """Exit code and stderr, once the process has ended."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, self.complaints()

    def complaints(self):
        """What stderr has so far."""
        return "".join(self._complaints)

    def health(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=LIMIT_S) as got:
            return got.read().decode()

    def idle(self):
        return '"decoding":0,"waiting":0,"held_tokens":0' in self.health()

    def resident_bytes(self):
        """Memory of the process and of those that it has started."""
        return sum(map(_resident_kib, [self.process.pid, *_children(self.process.pid)])) << 10


def _children(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _resident_kib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])

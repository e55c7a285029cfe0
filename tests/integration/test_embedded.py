"""The embedded Prefect server does not outlive its command, however that ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
COMMAND = """
import subprocess, sys, time
from flows.embedded import end_with_this_process
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
end_with_this_process(server.pid)
print(server.pid, flush=True)
time.sleep(120)
"""


def test_a_killed_command_leaves_no_server() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, env=environment)
    assert command.stdout is not None
    server = psutil.Process(int(command.stdout.readline()))
    time.sleep(0.5)
    assert server.is_running()
    command.kill()
    command.wait()
    command.stdout.close()
    server.wait(20)
    assert not server.is_running()

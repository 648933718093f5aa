#!/usr/bin/env python3
"""libweft_cuda.so on a machine without a driver: who asks for it by name gets
one line and the exit code of a missing resource, `auto` one line in the log and
the CPU.

    no_driver.py WEFT LIBRARY MODEL
"""

import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NO_DRIVER = "no NVIDIA driver on this machine"
RESOURCE_MISSING = 4
DEADLINE_S = 120


def fail(text):
    sys.exit(f"FAIL {text}")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def expect_refusal(*command):
    name = " ".join(command[1:])
    done = run(*command)
    if done.returncode != RESOURCE_MISSING:
        fail(f"{name}: exit {done.returncode}, not {RESOURCE_MISSING}: {done.stderr}")
    # The log goes there, too: its lines begin with the time.
    lines = [line for line in done.stderr.splitlines() if not line[:4].isdigit()]
    if len(lines) != 1 or NO_DRIVER not in lines[0] or "--backend cuda" not in lines[0]:
        fail(f"{name}: expected one line with its reason, got {done.stderr!r}")
    if done.stdout:
        fail(f"{name}: printed {done.stdout!r}")
    print(lines[0])


def expect_reason(name, log):
    said = [line for line in log.splitlines() if NO_DRIVER in line]
    if len(said) != 1 or "backend" not in said[0]:
        fail(f"{name}: expected one line with the reason, got {said} in {log!r}")
    print(said[0])


def check_check(weft, model):
    """It has no flag for this: it looks at what `auto` would take."""
    done = run(weft, "check", "--model", model)
    if done.returncode != 0:
        fail(f"check: exit {done.returncode}: {done.stderr}")
    expect_reason("check", done.stderr)


def check_eval(weft, model, ids):
    command = (weft, "eval", "--model", model, "--ids", ids, "--kv-bytes", "64M")
    expect_refusal(*command, "--backend", "cuda")
    auto = run(*command, "--backend", "auto")
    cpu = run(*command, "--backend", "cpu")
    for done in (auto, cpu):
        if done.returncode != 0 or '"nll":' not in done.stdout:
            fail(f"eval: exit {done.returncode}: {done.stderr}")
    expect_reason("eval --backend auto", auto.stderr)
    if NO_DRIVER in cpu.stderr:
        fail("eval --backend cpu: it looked for a driver")
    score = [done.stdout.split('"seconds"')[0] for done in (auto, cpu)]
    if score[0] != score[1]:
        fail(f"eval: {score[0]} with auto, {score[1]} with cpu")


def wait_until_ready(process):
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    said, end = "", time.monotonic() + DEADLINE_S
    while "\n" not in said:
        if not selector.select(max(0.0, end - time.monotonic())):
            fail(f"serve --backend auto: not ready in {DEADLINE_S} s")
        chunk = os.read(process.stdout.fileno(), 65536).decode()
        if not chunk:
            fail("serve --backend auto: it ended")
        said += chunk
    if not said.startswith("ready "):
        fail(f"serve --backend auto: said {said!r}")


def check_serve(weft, model):
    command = [weft, "serve", "--model", model, "--listen", "127.0.0.1:0"]
    command += ["--http", "off", "--kv-bytes", "64M"]
    expect_refusal(*command, "--backend", "cuda")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--backend", "auto"], stdout=subprocess.PIPE, stderr=log
        )
        try:
            wait_until_ready(process)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            fail(f"serve --backend auto: exit {process.returncode}")
        log.seek(0)
        expect_reason("serve --backend auto", log.read())


def main():
    program, library, model = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        # Beside the program, and where packages put it.
        for place in ("bin", "lib/weft"):
            root = pathlib.Path(folder) / place.replace("/", "-")
            (root / "bin").mkdir(parents=True)
            (root / place).mkdir(parents=True, exist_ok=True)
            weft = str(shutil.copy(program, root / "bin" / "weft"))
            os.symlink(os.path.abspath(library), root / place / "libweft_cuda.so")
            ids = root / "ids"
            ids.write_text("1 2 3 4 5 6 7 8\n", encoding="utf-8")
            check_check(weft, model)
            check_eval(weft, model, str(ids))
        check_serve(weft, model)


if __name__ == "__main__":
    main()

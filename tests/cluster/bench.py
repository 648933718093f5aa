"""Measures a cluster of real processes, one JSON line a case; never a pass or fail.
usage: tests/cluster/bench [--weft BINARY] [--model DIR]...

join     an expert shard joins: from its start until it serves, beside the bytes it read over what this machine reads from the
         page cache in the same run
stall    2 → 4 → 3 → 2 expert shards under 16 streams, the weights in the page cache: gaps beyond the median
speed    tokens a second of one stream and of eight: one process, and a cluster of one layer shard and two expert shards"""
import argparse
import json
import os
import platform
import random
import re
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "accept")]

from lib.context import Context                 # noqa: E402
from lib.data import discover                   # noqa: E402
from rig.cluster import Load, Rig               # noqa: E402

MACHINE = f"{platform.machine()} {os.cpu_count()} cores"


def tell(**values):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()} | {"machine": MACHINE, "load": round(os.getloadavg()[0], 1)}), flush=True)


def read_bytes_per_s(folder):
    """All of the weights, from the page cache (a first pass fills it)."""
    best = 0.0
    for _ in range(3):
        begin, total = time.monotonic(), 0
        for file in sorted(folder.glob("*.safetensors")):
            with open(file, "rb", buffering=0) as source:
                while piece := source.read(1 << 22):
                    total += len(piece)
        best = max(best, total / (time.monotonic() - begin))
    return best


def join(context, name):
    rig = Rig(context, random.Random(1), experts=2, streams=4)
    bandwidth = read_bytes_per_s(rig.model.path)
    begin = time.monotonic()
    shard = rig.expert(2)
    shard.wait_ready(60)
    ready = time.monotonic() - begin
    rig.wait(experts=3)
    serving = time.monotonic() - begin
    loaded = [re.search(r"read_bytes (\d+) seconds ([\d.]+)", line) for line in shard.stderr]
    loaded = [m for m in loaded if m]
    size, seconds = sum(int(m[1]) for m in loaded), sum(float(m[2]) for m in loaded)
    tell(bench="join", model=name, bytes=size, ready_s=ready, serving_s=serving, load_s=seconds, page_cache_bytes_per_s=int(bandwidth),
         floor_s=size / bandwidth, load_over_floor=seconds / max(size / bandwidth, 1e-9))
    rig.stop()


def stall(context, name):
    rig = Rig(context, random.Random(1), experts=2, streams=16)
    load = Load(rig)
    load.settle()
    for _ in range(5):
        with load.disturbed("while it was rescaled"):
            rig.expert(2)
            rig.expert(3)
            rig.wait(experts=4)
            for number, left in ((3, 3), (2, 2)):
                rig.shards[f"experts-{number}"].signal(signal.SIGTERM)
                rig.shards[f"experts-{number}"].wait(40)
                rig.wait(experts=left)
    load.stop("rescales")
    tell(bench="stall", model=name, cycles=len(load.stalls), streams=load.done, median_gap_ms=1e3 * load.median, longest_ms=1e3 * load.worst,
         each_ms=[round(1e3 * s) for s in load.stalls])
    rig.stop()


def tokens_per_s(served, prompt, streams, tokens=64):
    best = 0.0
    for _ in range(3):
        running = [served.client.start(ids=prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True) for _ in range(streams)]
        results = [r.wait(120).need("a stream") for r in running]
        first = min(r.arrivals[0] for r in results)
        last = max(r.end_at for r in results)
        best = max(best, streams * (tokens - 1) / (last - first))
    return best


def speed(context, name):
    model = context.model()
    prompt = context.prompt(model, 12)
    served = context.serve(model, "--profile", "exact")
    one = {n: tokens_per_s(served, prompt, n) for n in (1, 8)}
    served.stop()
    rig = Rig(context, random.Random(1), experts=2, streams=4)
    for n in (1, 8):
        many = tokens_per_s(rig.served, prompt, n)
        tell(bench="speed", model=name, streams=n, one_process_tokens_per_s=one[n], cluster_tokens_per_s=many, ratio=many / one[n])
    rig.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--model", action="append", default=[])
    options = parser.parse_args()
    for folder in options.model or ["tests/data/tiny-model"]:
        context = Context(Path(options.weft).resolve(), discover([Path(folder).parent]))
        context.models = [m for m in context.models if m.path.resolve() == Path(folder).resolve()]
        context.model = lambda: context.models[0]
        try:
            for case in (join, stall, speed):
                case(context, Path(folder).name)
                context.end_case()
        finally:
            context.close()


if __name__ == "__main__":
    main()

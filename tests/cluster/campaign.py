"""Runs the scenarios of rig/scenarios.py and prints one line each, then the sum; exit 0 only if none failed."""
import argparse
import json
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "accept")]

from lib.case import Fail, OutOfTime, Skip      # noqa: E402
from lib.context import Context                 # noqa: E402
from lib.data import discover                   # noqa: E402
from rig import devices, net, ranks, scenarios  # noqa: E402

SETS = {"faults": scenarios.ALL + ranks.CPU, "devices": devices.ALL + ranks.DEVICES}


def alarm(*_):
    raise OutOfTime()


def run(scenario, context, seed, size):
    rng = random.Random(f"{seed}/{scenario.__name__}")
    signal.alarm(scenario.limit * (1 if size == "short" else 12))
    begin = time.monotonic()
    try:
        return "PASS", scenario(context, rng, size) or "", time.monotonic() - begin
    except Skip as skip:
        return "SKIP", str(skip), time.monotonic() - begin
    except OutOfTime:
        return "FAIL", "over its time", time.monotonic() - begin
    except Fail as fail:
        return "FAIL", str(fail), time.monotonic() - begin
    except Exception as error:      # a defect of the campaign itself
        traceback.print_exc()
        return "FAIL", f"{type(error).__name__}: {error}", time.monotonic() - begin
    finally:
        signal.alarm(0)


def run_apart(scenario, options):
    """A scenario that takes namespaces runs in one of its own, as a campaign of one."""
    why = net.possible()
    if why is not None:
        return "SKIP", why, 0.0
    begin = time.monotonic()
    done = subprocess.run(["unshare", "--net", "--mount", sys.executable, "-B", __file__, "--inside", "--weft", options.weft, "--data", options.data,
                           "--seed", str(options.seed), "--size", options.size, "--only", scenario.__name__],
                          capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("    host: "):
            print(line, flush=True)
    words = [line for line in done.stdout.splitlines() if line.startswith(("PASS ", "FAIL ", "SKIP "))]
    if not words:
        return "FAIL", (done.stdout + done.stderr)[-2000:], time.monotonic() - begin
    word, _, figure = words[0].partition(" ")
    if word == "FAIL":
        print(done.stdout)
    return word, figure.partition(" ")[2], time.monotonic() - begin


def logs(context):
    for thing in context._own:
        if hasattr(thing, "stderr"):
            print(f"    == {thing.name()} ({'runs' if thing.alive else 'ended'})")
            for line in list(thing.stderr)[-12:]:
                print(f"    | {line}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--failpoints", help="a binary built with WEFT_FAILPOINTS")
    parser.add_argument("--data", default="tests/data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=("short", "long"), default="short")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--set", choices=sorted(SETS), default="faults", help="devices: shards on simt, which the binary must have")
    options = parser.parse_args()
    chosen = [s for s in SETS[options.set] if not options.only or s.__name__ in options.only]
    unknown = set(options.only) - {s.__name__ for s in SETS[options.set]}
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        for scenario in chosen:
            print(f"{scenario.__name__:24} {scenario.__doc__.splitlines()[0]}")
        return 0
    signal.signal(signal.SIGALRM, alarm)
    if options.inside:
        net.lay_out()
    models = discover([Path(options.data)])
    context = Context(Path(options.weft).resolve(), models)
    context.failpoints = Path(options.failpoints).resolve() if options.failpoints else None
    count = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    lines = []
    print(f"campaign: seed {options.seed}, size {options.size}, {len(chosen)} scenarios", flush=True)
    try:
        for scenario in chosen:
            if hasattr(scenario, "namespaces") and not options.inside:
                word, figure, seconds = run_apart(scenario, options)
            else:
                word, figure, seconds = run(scenario, context, options.seed, options.size)
            count[word] += 1
            print(f"{word} {scenario.__name__} {figure} ({seconds:.1f} s)", flush=True)
            lines.append(dict(scenario=scenario.__name__, outcome=word, figure=figure, seconds=round(seconds, 1), seed=options.seed,
                              size=options.size, **scenarios.FIGURES.pop(scenario.__name__, {})))
            if word == "FAIL":
                print(f"    again: tests/cluster/run --set {options.set} --seed {options.seed} --size {options.size} --only {scenario.__name__}")
                logs(context)
            context.end_case()
    finally:
        context.close()
    if options.json:
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped")
    return 1 if count["FAIL"] or not count["PASS"] else 0


if __name__ == "__main__":
    sys.exit(main())

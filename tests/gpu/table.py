#!/usr/bin/env python3
"""What tests/gpu/run prints of its files.

    table.py bench FILE              lines of bench_device as a table; fails
                                     when a result is wrong
    table.py distance PROFILE A B    how far two files of logits are apart
"""

import array
import json
import math
import sys

# Of samples of a result: the largest difference over the largest value. Sums of
# bfloat16 products in fp32; attention also rounds its result to bfloat16.
ERROR_MAX = {"gemm": 2e-5, "grouped": 2e-5, "attn": 2e-2, "index_select": 1e-2}
ERROR_MAX_ELSE = 1e-5
# Relative L2 of logits with free choices: a key or an expert may differ.
DISTANCE_MAX = {"exact": 1e-3, "bf16": 2e-1}


def read_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def rate(line):
    """By what the case comes closest to: reading, or arithmetic."""
    by_bytes, by_flops = line.get("share_of_copy", 0.0), line.get("share_of_gemm", 0.0)
    if by_flops > by_bytes:
        return f"{line['tflop_per_s']:.1f} TFLOP/s", f"{by_flops:.2f} of gemm"
    return f"{line['gb_per_s']:.0f} GB/s", f"{by_bytes:.2f} of copy"


def bench(path):
    lines = read_lines(path)
    if not lines:
        print("no lines")
        return 1
    first = lines[0]
    print(f"\n{first['device']}, library {first['library']}"
          + (": EMULATED, tiny shapes, times mean nothing" if first["tiny"] else ""))
    print(f"{'kernel':<46} {'error':>8} {'us':>11} {'rate':>16} {'fraction':>13}")
    wrong = []
    for line in lines:
        name = line["case"]
        error = float(line["error"]) if "error" in line else None
        most = ERROR_MAX.get(name.split()[0], ERROR_MAX_ELSE)
        # Not a number is no error below any limit.
        if error is not None and not error <= most:
            wrong.append(f"FAIL {name}: error {error:.2g}, at most {most:.0e} is right")
        shown = "" if error is None else f"{error:.1e}"
        speed, share = ("-", "-") if first["tiny"] else rate(line)
        print(f"{name:<46} {shown:>8} {line['us']:>11.1f} {speed:>16} {share:>13}")
    print("\n".join(wrong))
    return 1 if wrong else 0


def read_floats(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


def distance(profile, path_a, path_b):
    a, b = read_floats(path_a), read_floats(path_b)
    if len(a) != len(b) or not a:
        print(f"{len(a)} and {len(b)} logits")
        return 1
    off = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
    size = math.sqrt(sum(x * x for x in a))
    most = DISTANCE_MAX[profile]
    relative = off / size
    print(f"      {len(a)} logits, relative L2 {relative:.2e}, at most {most:.0e} is right")
    return 0 if relative <= most else 1


def main():
    if sys.argv[1:2] == ["bench"] and len(sys.argv) == 3:
        return bench(sys.argv[2])
    if sys.argv[1:2] == ["distance"] and len(sys.argv) == 5:
        return distance(*sys.argv[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

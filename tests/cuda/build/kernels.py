#!/usr/bin/env python3
"""What is in libweft_cuda.so: which kernel for which architecture, its
registers and memory, and the instructions that it is made of.

    kernels.py --toolkit ROOT --table kernels.txt [--archs LIST] [--out FOLDER]
        LIBRARY

LIBRARY may be an object, too. Writes kernels.jsonl (a line for each kernel and
architecture) and manifest.txt (a table of both) to FOLDER, prints a summary,
and fails when the library is not what the table says: another architecture than
those of LIST, or one of them missing; a row that fits no kernel, a kernel
without a body where it should have one, a hot one that uses local memory or
lacks an instruction that it is built for. Shared memory is what
a kernel has by itself; what launches add is not in the code.
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tempfile

LOCAL = ("LDL", "STL")
# A kernel that has none of these changes nothing: its body was left out.
STORES = ("STG", "ST", "RED", "REDG", "ATOM", "ATOMG", "UTMASTG")
LINE = re.compile(
    r"^\.text\.(\S+):$|/\*[0-9a-f]+\*/[ {]+(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_]*)", re.MULTILINE
)
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")


def output(*command, **kwargs):
    run = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if run.returncode != 0:
        sys.exit(f"{command[0]}: exit {run.returncode}: {run.stderr.strip()}")
    return run.stdout


def natural(arch):
    return int(re.sub(r"\D", "", arch)), arch


def short_names(mangled):
    """Without namespaces, types of arguments and of the result."""
    lines = output("c++filt", input="\n".join(mangled)).splitlines()
    names = {}
    for symbol, name in zip(mangled, lines):
        name = re.sub(r"\(anonymous namespace\)::|\bweft::", "", name)
        name = re.sub(r"^void ", "", name)
        depth, end = 0, len(name)
        for i, c in enumerate(name):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                end = i
                break
        name = re.sub(r"> >", ">>", name[:end])
        names[symbol] = re.sub(r"\((?:int|bool)\)", "", name)
    return names


def read_usage(toolkit, library):
    """{(architecture, symbol): {registers, stack_bytes, shared_bytes}}"""
    usage, arch, symbol = {}, None, None
    for line in output(f"{toolkit}/bin/cuobjdump", "-res-usage", library).splitlines():
        if line.startswith("arch = sm_"):
            arch = line.split("sm_")[1].strip()
        elif line.strip().startswith("Function "):
            symbol = line.strip()[len("Function ") :].rstrip(":")
        elif found := USAGE.search(line):
            registers, stack, shared = map(int, found.groups())
            usage[arch, symbol] = {
                "registers": registers,
                "stack_bytes": stack,
                "shared_bytes": shared,
            }
    return usage


def read_code(toolkit, library):
    """{(architecture, symbol): Counter of instructions}"""
    code = {}
    with tempfile.TemporaryDirectory() as folder:
        output(f"{toolkit}/bin/cuobjdump", "-xelf", "all", library, cwd=folder)
        for cubin in sorted(pathlib.Path(folder).glob("*.cubin")):
            arch, counter = re.search(r"sm_(\w+)\.", cubin.name).group(1), None
            text = output(f"{toolkit}/bin/nvdisasm", "-ndf", "-c", str(cubin))
            for symbol, word in LINE.findall(text):
                if symbol:
                    counter = code[arch, symbol] = collections.Counter()
                elif counter is not None:
                    counter[word] += 1
    return code


def read_kernels(toolkit, library):
    usage, code = read_usage(toolkit, library), read_code(toolkit, library)
    names = short_names(sorted({symbol for _, symbol in usage}))
    kernels = {}
    for (arch, symbol), numbers in usage.items():
        counter = code.get((arch, symbol))
        if counter is None:
            sys.exit(f"{names[symbol]}, sm_{arch}: nvdisasm shows no code of it")
        kernels[names[symbol], arch] = numbers | {
            "local_loads": counter["LDL"],
            "local_stores": counter["STL"],
            "instructions": sum(counter.values()) - counter["NOP"],
            "has_body": any(counter[word] for word in STORES),
            "uses": counter,
        }
    return kernels


def read_table(path):
    rows = []
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3:
            sys.exit(f"{path}:{number}: {len(parts)} columns, there must be 3")
        rows.append((parts[0], parts[1].split(), parts[2].split()))
    return rows


def check(kernels, archs, rows):
    """A line for each thing that is wrong, and the hot kernels."""
    wrong, hot = [], {}
    matched = set()
    for name in sorted({name for name, _ in kernels}):
        row = next((r for r in rows if fnmatch.fnmatchcase(name, r[0])), None)
        wanted = archs
        if row is not None:
            matched.add(row[0])
            hot[name] = row
            wanted = archs if row[1] == ["all"] else [a for a in archs if a in row[1]]
        for arch in wanted:
            kernel = kernels.get((name, arch))
            if kernel is None or not kernel["has_body"]:
                wrong.append(f"{name}: has no body for sm_{arch}")
                continue
            if row is None:
                continue
            for word in row[2]:
                if not any(used.startswith(word) for used in kernel["uses"]):
                    wrong.append(f"{name}: uses no {word} on sm_{arch}")
            if kernel["local_loads"] + kernel["local_stores"] > 0:
                wrong.append(
                    f"{name}: local memory on sm_{arch}, {kernel['local_loads']} loads "
                    f"and {kernel['local_stores']} stores ({kernel['stack_bytes']} bytes)"
                )
    wrong += [f"row {r[0]}: there is no such kernel" for r in rows if r[0] not in matched]
    return wrong, hot


def write_manifest(path, kernels, archs):
    """Registers of each kernel, by architecture; - where it has no body."""
    names = sorted({name for name, _ in kernels})
    with open(path, "w", encoding="utf-8") as out:
        print("registers (+ local loads and stores)", file=out)
        print("".join(f"{'sm_' + a:>9}" for a in archs) + "  kernel", file=out)
        for name in names:
            cells = []
            for arch in archs:
                kernel = kernels.get((name, arch))
                if kernel is None or not kernel["has_body"]:
                    cells.append("-")
                    continue
                local = kernel["local_loads"] + kernel["local_stores"]
                cells.append(f"{kernel['registers']}" + (f"+{local}" if local else ""))
            print("".join(f"{c:>9}" for c in cells) + f"  {name}", file=out)


def write_lines(path, kernels, hot):
    words = sorted({word for row in hot.values() for word in row[2]})
    with open(path, "w", encoding="utf-8") as out:
        for (name, arch), kernel in sorted(
            kernels.items(), key=lambda item: (item[0][0], natural(item[0][1]))
        ):
            uses = kernel["uses"]
            counts = {w: sum(n for used, n in uses.items() if used.startswith(w)) for w in words}
            line = {"bench": "kernel_code", "kernel": name, "arch": f"sm_{arch}", "hot": name in hot}
            line |= {k: v for k, v in kernel.items() if k != "uses"}
            line["uses"] = {w: n for w, n in counts.items() if n}
            print(json.dumps(line), file=out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--toolkit", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--archs", help="such as '80 90a'")
    parser.add_argument("--out")
    parser.add_argument("built", metavar="LIBRARY")
    args = parser.parse_args()
    library = str(pathlib.Path(args.built).resolve())
    kernels = read_kernels(str(pathlib.Path(args.toolkit).absolute()), library)
    archs = sorted({arch for _, arch in kernels}, key=natural)
    wrong, hot = check(kernels, archs, read_table(args.table))
    for arch in sorted(set(args.archs.split()) ^ set(archs)) if args.archs else []:
        wrong.append(f"sm_{arch}: " + ("not asked for" if arch in archs else "not there"))
    if args.out:
        out = pathlib.Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_manifest(out / "manifest.txt", kernels, archs)
        write_lines(out / "kernels.jsonl", kernels, hot)
    spilled = sorted({n for (n, _), k in kernels.items() if k["local_loads"] + k["local_stores"]})
    most = max(kernels.items(), key=lambda item: item[1]["registers"])
    names = {name for name, _ in kernels}
    print(f"{len(names)} kernels ({len(hot)} hot) for {len(archs)} architectures: "
          f"{', '.join('sm_' + a for a in archs)}")
    print(f"most registers: {most[1]['registers']}, {most[0][0]} on sm_{most[0][1]}")
    print(f"local memory in {len(spilled)}: {', '.join(spilled) or 'none'}")
    for line in wrong:
        print(f"FAIL {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

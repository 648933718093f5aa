#!/usr/bin/env python3
"""Mistakes made on purpose, in the model (model-spec 8.5) and in the engine:
each must turn a test red.

    tests/model/sensitivity.py [--part model|engine|split] [--only TEXT]...
                               [--list | --check]

The sources are copied to a scratch folder; there each mistake is put in by
replacing exact text, the shard library and the tests are built and run, and
the text is put back. A text that is not found as often as it should be, or
a build that fails, is an error and never a pass. One line a mistake; exit 0
only if all were caught. Takes about ten minutes; not a part of tests/run.
--check only looks whether the texts are there, in no time.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from sensitivity_list import ENGINE, MODEL, SPLIT

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What must notice the mistakes of each list.
MODEL_TESTS = ['model/test_spec', 'model/test_spec_forms',
               'model/test_goldens']
ENGINE_TESTS = ['unit/test_engine', 'unit/test_engine_logprobs',
                'model/test_long', 'model/test_invariance']
SPLIT_TESTS = ['unit/test_partition', 'unit/test_weights_part',
               'unit/test_expert_store', 'unit/test_expert_store_threads',
               'model/test_split']
PROGRAMS = MODEL_TESTS + ENGINE_TESTS + SPLIT_TESTS
SUPPORT = ['golden', 'harness', 'crowd', 'suite', 'synth', 'synth_cases',
           'synth_file', 'spec', 'desk', 'split']
LIBRARY = ['node/base', 'kernels', 'kernels/cpu', 'shard/model', 'shard/load',
           'shard/kv', 'shard/sched', 'shard/step', 'shard/sample',
           'shard/link', 'shard/expert']
FLAGS = ['-O1', '-g0', '-std=c17', '-D_GNU_SOURCE', '-I.', '-ffp-contract=off',
         '-w', '-MMD']
PATH_FLAGS = {
    'path_avx2': ['-mavx2', '-mfma', '-mf16c'],
    'path_avx512': ['-mavx512f', '-mavx512bw', '-mavx512dq', '-mavx512vl',
                    '-mfma', '-mf16c', '-mprefer-vector-width=512'],
}
PACKAGES = ['check', 'jansson', 'libssl', 'libcrypto']
LIMIT_S = 300


class Trouble(Exception):
    """The campaign itself does not work."""


def output_of(command):
    return subprocess.run(command, check=True, capture_output=True,
                          text=True).stdout.split()


class Tree:
    """A copy of the sources, built as far as the model tests need."""

    def __init__(self, folder):
        self.folder = folder
        for part in ('node/base', 'kernels', 'shard', 'tests/model',
                     'tests/unit', 'tests/support'):
            shutil.copytree(ROOT / part, folder / part)
        (folder / 'out').mkdir()
        self.sources = [p.relative_to(folder) for part in LIBRARY
                        for p in sorted((folder / part).glob('*.c'))]
        self.sources += [pathlib.Path('tests/support/%s.c' % s)
                         for s in SUPPORT]
        self.mains = [pathlib.Path('tests/%s.c' % p) for p in PROGRAMS]
        self.cflags = output_of(['pkg-config', '--cflags', *PACKAGES])
        self.libs = output_of(['pkg-config', '--libs', *PACKAGES])
        self.needs = {}  # source -> the files that it was made of

    def object_of(self, source):
        return self.folder / 'out' / (str(source).replace('/', '+') + '.o')

    def compile(self, source):
        out = self.object_of(source)
        command = ['gcc', *FLAGS, *PATH_FLAGS.get(source.stem, []),
                   *self.cflags, '-c', str(source), '-o', str(out)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise Trouble('%s does not compile:\n%s' % (source, done.stderr))
        text = out.with_suffix('.d').read_text().replace('\\\n', ' ')
        self.needs[source] = set(text.split(':', 1)[1].split())

    def build(self, changed=None):
        """Compile what depends on the changed files (None: everything)."""
        todo = [s for s in self.sources + self.mains
                if changed is None or self.needs[s] & set(changed)]
        if changed is not None and not todo:
            raise Trouble('nothing is made of %s' % ', '.join(changed))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.compile, todo))
        parts = [str(self.object_of(s)) for s in self.sources]
        for main in self.mains:
            done = subprocess.run(
                ['gcc', str(self.object_of(main)), *parts, *self.libs,
                 '-lpthread', '-lm', '-o',
                 str(self.folder / 'out' / main.stem)],
                capture_output=True, text=True)
            if done.returncode != 0:
                raise Trouble('%s does not link:\n%s' % (main, done.stderr))

    def verdict(self, program):
        """(green, what failed)."""
        try:
            name = program.split('/')[1]
            done = subprocess.run([str(self.folder / 'out' / name)], cwd=ROOT,
                                  capture_output=True, text=True,
                                  timeout=LIMIT_S, errors='replace')
        except subprocess.TimeoutExpired:
            return False, ['%s hangs' % program]
        failed = re.findall(r':[FES]:[\w/]+:(\w+):', done.stdout)
        if done.returncode != 0 and not failed:
            raise Trouble('%s: exit %d without a failed test:\n%s'
                          % (program, done.returncode, done.stdout))
        return done.returncode == 0, sorted(set(failed))

    def put_in(self, edits):
        """Returns the files' old texts."""
        old = {}
        for path, before, after, *count in edits:
            file = self.folder / path
            text = file.read_text()
            old.setdefault(path, text)
            want = count[0] if count else 1
            found = text.count(before)
            if found != want:
                raise Trouble('%s: %d times instead of %d: %r'
                              % (path, found, want, before))
            file.write_text(text.replace(before, after))
        return old

    def put_back(self, old):
        for path, text in old.items():
            (self.folder / path).write_text(text)


def try_mistake(tree, edits, programs, pending):
    """Names of failed tests; empty if nothing noticed."""
    old = tree.put_in(edits)
    try:
        tree.build(sorted(set(old) | pending))
        for program in programs:
            green, failed = tree.verdict(program)
            if not green:
                return failed
        return []
    finally:
        tree.put_back(old)
        pending.clear()
        pending.update(old)


def campaign(tree, chosen):
    tree.build()
    used = {program for _, _, programs in chosen for program in programs}
    for program in sorted(used):
        green, failed = tree.verdict(program)
        if not green:
            raise Trouble('without a mistake, %s fails: %s'
                          % (program, ', '.join(failed)))
    missed, broken, pending = [], [], set()
    for name, edits, programs in chosen:
        start = time.monotonic()
        try:
            failed = try_mistake(tree, edits, programs, pending)
        except Trouble as trouble:
            broken.append(name)
            print('ERROR   %s: %s' % (name, trouble), flush=True)
            continue
        if not failed:
            missed.append(name)
        print('%s  %s: %s (%.0f s)' % (
            'caught' if failed else 'MISSED', name,
            ', '.join(failed) or 'every test passes',
            time.monotonic() - start), flush=True)
    print('%d mistakes: %d caught, %d missed, %d that could not be made'
          % (len(chosen), len(chosen) - len(missed) - len(broken),
             len(missed), len(broken)))
    return 1 if missed or broken else 0


def check(chosen):
    """Whether every text is there as often as it should be."""
    wrong = 0
    for name, edits, _ in chosen:
        for path, before, _, *count in edits:
            want = count[0] if count else 1
            found = (ROOT / path).read_text().count(before)
            if found != want:
                wrong += 1
                print('ERROR   %s: %s: %d times instead of %d: %r'
                      % (name, path, found, want, before))
    print('%d mistakes, %d texts that are not there' % (len(chosen), wrong))
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--only', action='append', default=[],
                        help='mistakes whose name holds this text')
    parser.add_argument('--part', choices=['model', 'engine', 'split'])
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--check', action='store_true',
                        help='only whether the texts are there')
    parser.add_argument('--keep', action='store_true',
                        help='leave the scratch folder')
    options = parser.parse_args()
    chosen = [(n, e, programs)
              for part, mistakes, programs in (
                  ('model', MODEL, MODEL_TESTS),
                  ('engine', ENGINE, ENGINE_TESTS),
                  ('split', SPLIT, SPLIT_TESTS))
              if options.part in (None, part)
              for n, e in mistakes
              if not options.only or any(o in n for o in options.only)]
    if options.list or not chosen:
        print('\n'.join(n for n, _, _ in chosen) or 'no such mistake')
        return 0 if options.list else 2
    if options.check:
        return check(chosen)
    folder = pathlib.Path(tempfile.mkdtemp(prefix='weft-sensitivity-'))
    try:
        return campaign(Tree(folder), chosen)
    except Trouble as trouble:
        print('ERROR', trouble, file=sys.stderr)
        return 2
    finally:
        if not options.keep:
            shutil.rmtree(folder)


sys.dont_write_bytecode = True
sys.exit(main())

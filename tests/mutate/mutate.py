#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation test of kvd/mm: are its tests able to fail?

Changes the sources mechanically (mutants.py), one change at a time, and runs the unit tests of mm
and the simulator against each. A mutant that both let pass has survived; "alike" if the
simulator could not tell its answers from the original's. Left out: assertions, check*.c, *_check()
and digest.c, which are tests themselves. A mutant with the same object code as the original is no
mutant; it is counted apart.

A sample is drawn by --seed, and the same one each time. Results are kept in BUILD/results.jsonl: a
run that was interrupted goes on, and what has been caught once is not run again while its file is
the same. Survivors with a known reason are those named in survivors.md.
"""
import argparse
import concurrent.futures as futures
import glob
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time

import mutants

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Unit tests that take seconds come last, after the simulator; those that measure, not at all.
SLOW = re.compile(r'/(random|wait)_test\.c$')
LEFT_OUT = re.compile(r'/scale_test\.c$')
IS_CHECK = re.compile(r'(^|_)check$')
NOT_MUTATED = re.compile(r'/(check\w*|digest)\.c$')
CFLAGS = ['-std=gnu11', '-D_GNU_SOURCE', '-g0', '-w', '-fno-strict-aliasing', '-fno-common']
# As in make check-san; and what is not initialised shows.
CHECKED = ['-O1', '-fsanitize=undefined', '-fsanitize-undefined-trap-on-error',
           '-ftrivial-auto-var-init=pattern']

DRIVER = '''
#include <stdlib.h>
#include <string.h>
void (*panic)(const char *, const char *, int);
void sim_panic(const char *, const char *, int);
int sim_main(int, char **);
%(declare)s
void mm_panic(const char *what, const char *file, int line)
{
	if (panic)
		panic(what, file, line);
	abort();
}
int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "sim")) {
		panic = sim_panic;
		return sim_main(argc - 1, argv + 1);
	}
	if (argc > 1 && !strcmp(argv[1], "slow"))
		return %(slow)s;
	return %(call)s;
}
'''


def sh(args, **kw):
    return subprocess.run(args, cwd=ROOT, check=True, **kw)


class Bench:
    """The prebuilt rest: objects of mm, and one of all tests."""

    def __init__(self, build, cc):
        self.dir, self.cc = build, cc
        os.makedirs(build, exist_ok=True)
        self.sources = sorted(glob.glob('kvd/mm/*.c', root_dir=ROOT))

    def compile(self, text, name, out, inc=('-Ikvd/mm',), more=('-O2',)):
        """Compiles text as if it were the file of that name."""
        return subprocess.run([self.cc, *CFLAGS, *more, *inc, '-x', 'c', '-c', '-o', out, '-'], cwd=ROOT,
                              input=f'# 1 "{name}"\n{text}', text=True, capture_output=True)

    def must_compile(self, name, out, inc=('-Ikvd/mm',)):
        with open(os.path.join(ROOT, name)) as f:
            done = self.compile(f.read(), name, out, inc)
        if done.returncode:
            sys.exit(f'{name}: {done.stderr}')
        return out

    def obj(self, name):
        return os.path.join(self.dir, name.replace('/', '_')[:-2] + '.o')

    def prepare(self, jobs):
        units = [u for u in sorted(glob.glob('tests/unit/mm/*_test.c', root_dir=ROOT))
                 if not LEFT_OUT.search(u)]
        sims = sorted(glob.glob('tests/sim/*.c', root_dir=ROOT))
        unit_inc = ['-Ikvd/mm', '-Itests/unit/mm', '-Itests/unit']
        with futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda s: self.must_compile(s, self.obj(s)), self.sources))
            list(pool.map(lambda s: self.must_compile(s, self.obj(s), unit_inc), units))
            list(pool.map(lambda s: self.must_compile(s, self.obj(s), ['-Ikvd/mm', '-Itests/sim']),
                          sims))
        mains = {}
        for u in units:
            main = 'main_' + os.path.basename(u)[:-2]
            sh(['objcopy', f'--redefine-sym=main={main}', f'--keep-global-symbol={main}',
                self.obj(u)])
            mains[u] = main + '()'
        sim = os.path.join(self.dir, 'sim.o')
        sh(['ld', '-r', '-o', sim] + [self.obj(s) for s in sims])
        sh(['objcopy', '--redefine-sym=main=sim_main', '--redefine-sym=mm_panic=sim_panic',
            '--keep-global-symbol=sim_main', '--keep-global-symbol=sim_panic', sim])
        driver = DRIVER % {
            'declare': '\n'.join(f'int {m.replace("()", "(void)")};' for m in mains.values()),
            'slow': ' || '.join(m for u, m in mains.items() if SLOW.search(u)) or '0',
            'call': ' || '.join(m for u, m in mains.items() if not SLOW.search(u))}
        done = self.compile(driver, 'driver.c', os.path.join(self.dir, 'driver.o'))
        if done.returncode:
            sys.exit(done.stderr)
        self.tests = os.path.join(self.dir, 'tests.o')
        sh(['ld', '-r', '-o', self.tests, sim, os.path.join(self.dir, 'driver.o')] +
           [self.obj(u) for u in units])

    def link(self, out, name=None, obj=None):
        objs = [obj if s == name else self.obj(s) for s in self.sources]
        return subprocess.run([self.cc, '-o', out, self.tests, *objs, '-lcmocka', '-lm'], cwd=ROOT,
                              capture_output=True, text=True)


class Trial:
    """How to run the tests, and how long they may take."""

    def __init__(self, args):
        self.sim = ['sim', '--once', '--stop', '--seeds', args.sim_seeds, '--ops',
                    str(args.sim_ops)]
        self.limit = {'unit': 60, 'sim': 300, 'slow': 60}

    def run(self, binary, kind):
        cpu = int(self.limit[kind]) + 1

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

        args = [binary] + {'unit': [], 'slow': ['slow'], 'sim': self.sim}[kind]
        try:
            done = subprocess.run(args, preexec_fn=limit, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  timeout=40 * cpu)
        except subprocess.TimeoutExpired:
            return 'timeout', b''
        if done.returncode == 0:
            return 'passed', b''.join(re.findall(rb'trail \w+', done.stdout))
        if done.returncode in (-24, -9):        # SIGXCPU
            return 'timeout', b''
        return 'failed', b''

    def baseline(self, binary):
        for kind in ('slow', 'unit', 'sim'):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            verdict, self.trail = self.run(binary, kind)
            if verdict != 'passed':
                sys.exit(f'mutate: the {kind} tests fail without a mutation')
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.limit[kind] = 5 * used + 2
            print(f'mutate: {kind} tests take {used:.1f} s', flush=True)


class Mutant:
    def __init__(self, name, text, mutation):
        self.op, self.start, self.end, self.new = mutation
        self.name, self.text = name, text
        self.old = text[self.start:self.end]
        self.line = text.count('\n', 0, self.start) + 1
        self.function = mutants.function_at(text, self.start)
        self.key = hashlib.sha1(f'{name}\0{text}\0{mutation}'.encode()).hexdigest()[:16]

    def mutated(self):
        # Lines keep their numbers: __LINE__ is in the object code.
        gone = self.old.count('\n') - self.new.count('\n')
        return self.text[:self.start] + self.new + '\n' * gone + self.text[self.end:]

    def change(self):
        """The line as it is, and as it becomes."""
        first = self.text.rfind('\n', 0, self.start) + 1
        last = self.text.find('\n', self.end)
        old = self.text[first:last]
        new = self.text[first:self.start] + self.new + self.text[self.end:last]
        return [re.sub(r'\s+', ' ', x).strip() for x in (old, new)]

    def label(self):
        old, new = self.change()
        return f'{os.path.basename(self.name)} {self.function}: `{old}` -> `{new}`'


def judge(bench, trial, m, scratch):
    obj, binary = scratch + '.o', scratch + '.bin'
    if bench.compile(m.mutated(), m.name, obj, more=CHECKED).returncode:
        return 'compile error'
    if bench.link(binary, m.name, obj).returncode:
        return 'compile error'
    trails = {}
    for kind in ('unit', 'sim', 'slow'):
        verdict, trails[kind] = trial.run(binary, kind)
        if verdict != 'passed':
            return f'{kind} timeout' if verdict == 'timeout' else kind
    if bench.compile(m.mutated(), m.name, obj).returncode:
        return 'compile error'
    with open(obj, 'rb') as a, open(bench.obj(m.name), 'rb') as b:
        if a.read() == b.read():
            return 'equivalent'
    # Did the simulator get the same answers from it, all of them?
    return 'survived' if trails['sim'] != trial.trail else 'survived alike'


def all_mutants(files):
    found = []
    for name in files:
        with open(os.path.join(ROOT, name)) as f:
            text = f.read()
        found += [Mutant(name, text, m) for m in mutants.of_file(text)]
    return [m for m in found if not IS_CHECK.search(m.function)]


def reasons():
    """label -> heading it stands under, of survivors.md"""
    known, heading = {}, '?'
    with open(os.path.join(HERE, 'survivors.md')) as f:
        for line in f:
            if line.startswith('## '):
                heading = line[3:].strip()
            elif line.startswith('- '):
                known[line[2:].strip()] = heading
    return known


def report(results, sample, known):
    count = {}
    for m in sample:
        count[results[m.key]] = count.get(results[m.key], 0) + 1
    real = sum(n for v, n in count.items() if v not in ('equivalent', 'compile error'))
    survived = [m for m in sample if results[m.key].startswith('survived')]
    print('\nverdict           mutants')
    for verdict in sorted(count):
        print(f'{verdict:16} {count[verdict]:8}')
    for m in sorted(survived, key=lambda m: (m.name, m.line)):
        old, new = m.change()
        why = known.get(m.label())
        print(f'\n{m.name}:{m.line}: {m.function}: {m.op}: {results[m.key]}: '
              f'{why or "WITHOUT A REASON"}'
              f'\n\t- {old}\n\t+ {new}')
    nameless = sum(m.label() not in known for m in survived)
    score = 100 * (real - len(survived)) / real if real else 0
    print(f'\nmutate: {len(sample)} mutants, {real} that compile and differ, '
          f'{real - len(survived)} caught: {score:.1f} %, {len(survived)} survived, '
          f'{nameless} of them without a reason in survivors.md')
    return score


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--mutants', type=int, default=300, help='how many to draw; 0: all')
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--files', nargs='*', default=[], help='of kvd/mm; all by default')
    p.add_argument('--jobs', type=int, default=os.cpu_count())
    p.add_argument('--build', default='build/mutate')
    p.add_argument('--cc', default='gcc')
    p.add_argument('--sim-seeds', default='1..150')
    p.add_argument('--sim-ops', type=int, default=1500)
    p.add_argument('--at-least', type=float, default=90, help='percent caught, or it fails')
    p.add_argument('--list', action='store_true', help='print the sample and stop')
    return p.parse_args()


def load(path):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    return {x['key']: x['verdict'] for x in lines if not x['verdict'].startswith('survived')}


def run(bench, trial, todo, results, path, jobs):
    lock, start, scratch = threading.Lock(), time.time(), threading.local()
    names = iter(range(jobs))
    done = 0

    def one(m):
        if not hasattr(scratch, 'path'):
            with lock:
                scratch.path = os.path.join(bench.dir, f'mutant{next(names)}')
        return m, judge(bench, trial, m, scratch.path)

    with futures.ThreadPoolExecutor(jobs) as pool, open(path, 'a') as log:
        for m, verdict in pool.map(one, todo):
            results[m.key] = verdict
            done += 1
            log.write(json.dumps({'key': m.key, 'verdict': verdict, 'label': m.label()}) + '\n')
            log.flush()
            if verdict.startswith('survived') or done % 20 == 0:
                rate = done / (time.time() - start)
                print(f'mutate: {done} of {len(todo)}, {rate:.2f}/s, '
                      f'{m.name}:{m.line} {verdict}', file=sys.stderr, flush=True)


def main():
    args = arguments()
    build = os.path.join(ROOT, args.build)
    bench, trial = Bench(build, args.cc), Trial(args)
    files = [f if '/' in f else 'kvd/mm/' + f for f in args.files] or \
        [s for s in bench.sources if not NOT_MUTATED.search(s)]
    every = all_mutants(files)
    sample = every
    if args.mutants and args.mutants < len(every):
        # By hash, so that a change of one file leaves the sample of the others alone.
        every.sort(key=lambda m: hashlib.sha1(f'{args.seed} {m.key}'.encode()).digest())
        sample = every[:args.mutants]
    print(f'mutate: {len(sample)} of {len(every)} mutants of {len(files)} files, seed {args.seed}',
          flush=True)
    if args.list:
        for m in sample:
            print(f'{m.name}:{m.line}: {m.op}: {m.label()}')
        return 0
    bench.prepare(args.jobs)
    binary = os.path.join(build, 'original.bin')
    done = bench.link(binary)
    if done.returncode:
        sys.exit(done.stderr)
    trial.baseline(binary)
    path = os.path.join(build, 'results.jsonl')
    results = load(path)
    run(bench, trial, [m for m in sample if m.key not in results], results, path, args.jobs)
    return 0 if report(results, sample, reasons()) >= args.at_least else 1


if __name__ == '__main__':
    sys.exit(main())

"""A cluster of real processes, the streams that run over it, and what must hold when everything is over."""
import os
import random
import shutil
import statistics
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from lib import web
from lib.case import Fail, Skip, expect
from lib.client import Client
from lib.context import Served
from cases.cluster import Etcd, free_port, ready_or_skip
from cases.invariance import answer, requests, same
from cases.lifecycle import check_status

from rig.host import METER
from rig.proxy import Proxy


class Rig:
    """etcd, a router, layer shards, expert shards, and proxies where they are wanted. All of it ends with the scenario."""

    def __init__(self, context, rng, experts=3, stages=1, groups=1, replicas=1, streams=8, weft=None, proxied=(), flags=(), env=None, etcd=None, etcd_proxied=()):
        self.context, self.rng, self.model = context, rng, self.choose_model(context)
        self.weft = weft or context.weft
        self.name = f"rig{rng.randrange(10**9)}"
        self.replicas, self.stages, self.groups, self.flags, self.env = replicas, stages, groups, flags, env or {}
        self.shards, self.proxies, self.proxied = {}, {}, set(proxied)
        self.etcd = etcd or self.start_etcd()
        self.etcd_ways = {name: Proxy(self.etcd.address) for name in etcd_proxied}
        here = self.host("router")
        self.router_flags = ["--listen", f"{here}:{free_port()}", "--http", f"{here}:{free_port()}"]
        self.start_router()
        for group in range(groups):
            for stage in range(stages):
                self.layer(group, stage)
        for number in range(experts):
            self.expert(number)
        self.n_experts = experts
        self.began = time.monotonic()
        ready_or_skip(self.router)
        for shard in list(self.shards.values()):
            shard.wait_ready(60)
        self.served = Served(context, self.router, self.model)
        self.wait(experts=experts, layers=groups * stages)
        self.todo, self.wanted = self.known_answers(streams)
        self.files = self.open_files()

    # -- where things run: all on loopback here (net.py: each in a namespace of its own) -------------------------------
    def host(self, name):
        return "127.0.0.1"

    def inside(self, name):
        return []

    def start_etcd(self):
        return Etcd(self.context)

    # -- what is asked -----------------------------------------------------------------------------------------------
    def choose_model(self, context):
        return context.model()

    def known_answers(self, streams):
        return known_answers(self.context, self.model, streams, (60, 24, 90, 40), "--profile", "exact")

    # -- processes ---------------------------------------------------------------------------------------------------
    def start(self, name, command, *flags, env=None):
        etcd = self.etcd_ways[name].address if name in self.etcd_ways else self.etcd.address
        return self.context.program(*self.inside(name), self.weft, command, *flags, "--cluster", self.name, "--etcd", etcd,
                                    "--model", self.model.path, env={**self.env, **(env or {})})

    def start_router(self):
        self.router = self.start("router", "router", *self.router_flags, "--expert-replicas", self.replicas)

    def shard(self, name, *flags, env=None):
        listen = f"{self.host(name)}:{free_port()}"
        extra = []
        if name in self.proxied:
            old = self.proxies.pop(name, None)
            if old:
                old.close()
            self.proxies[name] = Proxy(listen)
            extra = ["--advertise", self.proxies[name].address]
        self.shards[name] = self.start(name, "shard", "--id", name, "--listen", listen, *extra, *flags, env=env)
        return self.shards[name]

    def layer(self, group=0, stage=0, env=None):
        return self.shard(f"layers-{group}-{stage}", "--role", "layers", "--group", group, "--stage", stage, "--stages", self.stages,
                          "--profile", "exact", *self.flags, env=env)

    def expert(self, number, env=None):
        return self.shard(f"experts-{number}", "--role", "experts", env=env)

    def experts_alive(self):
        return sorted(n for n, s in self.shards.items() if n.startswith("experts") and s.alive)

    # -- what it tells -----------------------------------------------------------------------------------------------
    def status(self):
        return check_status(self.context, self.router.grpc)

    def serving(self, role):
        return sorted(m["id"] for m in self.status()["members"] if m["role"] == role and m["state"] == "serving")

    def wait(self, experts=None, layers=None, within=40.0, ready=True):
        """Until so many members serve and /readyz says 200. Seconds that took."""
        begin = time.monotonic()
        while True:
            why = "?"
            try:
                members = self.status()["members"]
                count = lambda role: sum(m["role"] == role and m["state"] == "serving" for m in members)
                code, why = web.get(self.router.http, "/readyz")
                if (experts is None or count("experts") == experts) and (layers is None or count("layers") == layers) and \
                        (not ready or code == 200):
                    return time.monotonic() - begin
            except Fail as fail:
                members, why = [], fail
            if time.monotonic() - begin > within:
                states = [(m["id"], m["state"]) for m in members]
                raise Fail(f"expected {experts} expert and {layers} layer shards within {within:g} s; {states}, /readyz {why}")
            time.sleep(0.1)

    def open_files(self):
        return {name: shard.open_files() for name, shard in {"router": self.router, **self.shards}.items() if shard.alive}

    def keys(self):
        ctl = getattr(self.etcd, "ctl", [])
        scheme = "https://" if ctl else ""
        done = subprocess.run(["etcdctl", "--endpoints", scheme + self.etcd.address, *ctl, "get", f"/weft/{self.name}/", "--prefix", "--keys-only"],
                              env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=10)
        return [line for line in done.stdout.splitlines() if line.strip()]

    # -- the end -----------------------------------------------------------------------------------------------------
    def check_idle(self, what, bar=5.0):
        """Every pool is empty within that time."""
        began = time.monotonic()
        self.served.wait_idle(what, within=bar + 30)
        took = METER.since(began, f"idle, {what}")
        expect(took <= bar, f"{what}: everything was back to 0 after {took:.1f} s; the bar is {bar:g} s")

    def check_files(self, slack=12):
        for name, count in self.open_files().items():
            if name in self.files:
                expect(count <= self.files[name] + slack, f"{name}: {self.files[name]} open files at the start, {count} at the end")

    def check_logs(self):
        for name, shard in {"router": self.router, **self.shards}.items():
            for line in shard.stderr:
                expect("assert" not in line.lower() and "Sanitizer" not in line, f"{name}: {line}")

    def stop(self):
        """SIGTERM to all; exit 0; then nothing of a member may be left in etcd."""
        self.served.close()
        self.router.stop()
        for shard in self.shards.values():
            if shard.alive:
                shard.stop()
        keys = self.keys()
        expect(keys, "etcdctl shows no key at all, not even the epoch's")
        placements = [k for k in keys if k.endswith("/placement")]
        expect(len(placements) <= 3, f"placements of epochs that are over are left in etcd: {placements}")
        # Keys of what was killed go with its lease.
        deadline = time.monotonic() + 8
        while (left := [k for k in self.keys() if is_leased(k)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        expect(not left, f"keys left in etcd after everything was stopped: {left}")
        for proxy in (*self.proxies.values(), *self.etcd_ways.values()):
            proxy.close()
        self.etcd.server.kill()
        self.check_logs()


def is_leased(key):
    return any(part in key for part in ("/members/", "/ack/", "/switched/", "/suspects/")) or key.endswith("/controller")


class Authority:
    """Certificates of one authority for 127.0.0.1, and what says so to weft and to etcdctl."""

    def __init__(self, context, name):
        if shutil.which("openssl") is None:
            raise Skip("no openssl on PATH")
        self.ca, self.cert, self.key = (context.file(f"{name}.{end}") for end in ("ca.pem", "pem", "key"))
        ca_key, csr, more = (context.file(f"{name}.{end}") for end in ("ca.key", "csr", "ext"))
        Path(more).write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        for words in (("req", "-x509", *curve, "-keyout", ca_key, "-out", self.ca, "-days", "2", "-subj", f"/CN={name}"),
                      ("req", *curve, "-keyout", self.key, "-out", csr, "-subj", f"/CN={name}-member"),
                      ("x509", "-req", "-in", csr, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-out", self.cert, "-days", "2",
                       "-extfile", more)):
            done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, timeout=30)
            expect(done.returncode == 0, f"openssl {words[0]}: {done.stderr[-300:]}")

    def of_links(self):
        return {"WEFT_LINK_CA": str(self.ca), "WEFT_LINK_CERT": str(self.cert), "WEFT_LINK_KEY": str(self.key)}

    def of_etcd(self):
        return {"WEFT_ETCD_CA": str(self.ca), "WEFT_ETCD_CERT": str(self.cert), "WEFT_ETCD_KEY": str(self.key)}


class EtcdTls:
    """etcd that lets in only who has a certificate of that authority."""

    def __init__(self, context, authority):
        a = authority
        self.address = f"127.0.0.1:{free_port()}"
        self.ctl = ["--cacert", str(a.ca), "--cert", str(a.cert), "--key", str(a.key)]
        url, peer = f"https://{self.address}", f"http://127.0.0.1:{free_port()}"
        self.server = context.program("etcd", "--data-dir", context.file(f"etcd-tls-{self.address.rsplit(':', 1)[1]}"),
                                      "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
                                      "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--log-level", "error",
                                      "--client-cert-auth", "--trusted-ca-file", a.ca, "--cert-file", a.cert, "--key-file", a.key)
        deadline = time.monotonic() + 20
        while subprocess.run(["etcdctl", "--endpoints", url, *self.ctl, "get", "x"], env={**os.environ, "ETCDCTL_API": "3"},
                             capture_output=True, timeout=10).returncode != 0:
            self.server.check_alive("its start")
            expect(time.monotonic() < deadline, "etcd with certificates did not get healthy within 20 s")
            time.sleep(0.1)


class EtcdTrio:
    """Three etcd members on loopback; `server` is the one that Rig.stop ends, the others end with the scenario."""

    def __init__(self, context):
        self.context = context
        self.client = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.peer = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        self.folder = [context.file(f"etcd-trio-{address.rsplit(':', 1)[1]}") for address in self.client]
        self.address = ",".join(self.client)
        self.members = [None] * 3
        for i in range(3):
            self.start(i)
        self.wait()

    def start(self, i):
        url = f"http://{self.client[i]}"
        cluster = ",".join(f"m{k}={peer}" for k, peer in enumerate(self.peer))
        self.members[i] = self.context.program("etcd", "--name", f"m{i}", "--data-dir", self.folder[i], "--listen-client-urls", url,
                                               "--advertise-client-urls", url, "--listen-peer-urls", self.peer[i],
                                               "--initial-advertise-peer-urls", self.peer[i], "--initial-cluster", cluster,
                                               "--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error")

    def kill(self, i):
        self.members[i].kill()

    @property
    def server(self):
        return self.members[0]

    def wait(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if all(web.get(address, "/health")[0] == 200 for address in self.client):
                    return
            except Fail:
                pass
            time.sleep(0.1)
        raise Fail("three etcd members did not get healthy within 30 s")


_known: dict = {}


def known_answers(context, model, count, lengths, *flags):
    """Requests, and what one process with these flags answers to them; made once."""
    key = (model.path, count, lengths, flags)
    if key not in _known:
        served = context.serve(model, *flags)
        todo = requests(context, model, count)
        for i, request in enumerate(todo):
            request["max_tokens"] = lengths[i % 4]
        _known[key] = todo, [answer(served.generate(timeout=60, **r).need("weft serve")) for r in todo]
        served.stop()
    return _known[key]


class Disturbance:
    """What streams suffer of one fault: of every gap between two tokens that overlaps the time from its beginning until it is over. Streams that
    stand still have not told of it yet, so the stall is known only when the load was stopped."""

    def __init__(self, what):
        self.what, self.began, self.until, self._stall = what, time.monotonic(), None, None

    def over(self):
        self.until = time.monotonic()

    def measure(self, gaps, median):
        """The longest of (when it ended, seconds), less the median and what the host itself stood still."""
        mine = [(at, g) for at, g in gaps if at >= self.began and at - g <= self.until]
        self._stall = METER.longest(mine, self.what) - median

    @property
    def stall(self):
        if self._stall is None:
            raise RuntimeError("a stall is asked for while streams run that may stand still")
        return self._stall


class Load:
    """Streams that run without a pause; every answer must be the known one. Faults are kept, not raised.

    lone: there is one group, whose lead a fault takes away. What was accepted goes on when it is back; what is asked meanwhile may be refused."""

    def __init__(self, rig, allow=(), pause=0.0, lone=False):
        self.rig, self.allow, self.pause, self.lone = rig, set(allow), pause, lone
        self.done, self.refused, self.faults = 0, 0, []
        self.disturbances: list[Disturbance] = []
        self.under_way = False                       # a fault
        self.median = None                           # gap before the first fault
        self.gaps: list[tuple[float, float]] = []    # (when it ended, seconds) between tokens of one stream
        self.client = Client(rig.router.grpc)
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(len(rig.todo))]
        for thread in self._threads:
            thread.start()

    def _run(self, which):
        while not self._end.is_set() and len(self.faults) < 8:
            result = self.client.generate(timeout=90, **self.rig.todo[which])
            times = result.arrivals
            with self._lock:
                self.gaps += [(b, b - a) for a, b in zip(times, times[1:])]
                if result.code is not None and (result.code.name in self.allow or self.refused_alone(result)):
                    self.refused += 1
                else:
                    try:
                        same(answer(result.need(f"stream {which}")), self.rig.wanted[which], f"stream {which}")
                        self.done += 1
                    except (Fail, AttributeError) as fault:
                        self.faults.append(str(fault))
            if self.pause:
                time.sleep(self.pause)

    def refused_alone(self, result):
        return (self.lone and self.under_way and not result.arrivals and result.code.name == "UNAVAILABLE"
                and "no shards can serve this" in (result.details or ""))

    def settle(self, ends=None):
        target = self.done + (ends or len(self._threads))
        deadline = time.monotonic() + 60
        while self.done < target and not self.faults and time.monotonic() < deadline:
            time.sleep(0.02)
        self.check("before any fault")
        expect(self.done >= target, "no stream ended within 60 s before any fault")
        if self.median is None:
            self.median = self.median_gap()

    def median_gap(self):
        with self._lock:
            return statistics.median([g for _, g in self.gaps]) if self.gaps else 0.0

    @property
    def stalls(self):
        """Of each disturbance."""
        return [fault.stall for fault in self.disturbances]

    @property
    def worst(self):
        return max([0.0, *self.stalls])

    def check(self, what):
        expect(not self.faults, f"{what}: {self.faults[:2]}")

    @contextmanager
    def disturbed(self, what):
        """Around a fault (until over() is called, or the end); at the end no stream may have failed."""
        fault = Disturbance(what)
        self.under_way = True
        yield fault
        self.under_way = False
        if fault.until is None:
            fault.over()
        self.disturbances.append(fault)
        self.check(what)

    def stop(self, what):
        self._end.set()
        for thread in self._threads:
            thread.join(120)
        expect(not any(thread.is_alive() for thread in self._threads), f"{what}: a stream did not end within 120 s")
        for fault in self.disturbances:
            fault.measure(self.gaps, self.median)
        self.client.close()
        expect(not self.faults, f"{what}: {len(self.faults)} stream(s) failed: {'; '.join(self.faults[:3])}")
        expect(self.done > 0, f"{what}: no stream ended")


def within(stall, bar, what):
    expect(stall <= bar, f"{what}: a stream stood still for {stall:.2f} s beyond the median gap; the bar is {bar:g} s")

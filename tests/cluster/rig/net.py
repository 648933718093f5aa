"""The same cluster with every process in a network namespace of its own, so that the kernel can cut any of them off from
any other, in one direction too. The campaign runs this inside a namespace that it has made; nothing outside is touched."""
import shutil
import subprocess
import time

from lib import process
from lib.case import Fail

from rig.cluster import Rig

BRIDGE = "10.77.0.254"


def sh(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        raise Fail(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def possible():
    """Why not, or None. Asks for a namespace of its own."""
    for tool in ("ip", "nft", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", "ip link add br0 type bridge && nft list ruleset"],
                          capture_output=True, text=True)
    return None if done.returncode == 0 else f"no network namespace can be made: {done.stderr.strip()[:100]}"


def lay_out():
    """The hub: a bridge in the namespace that this process is in."""
    sh("mount", "-t", "tmpfs", "none", "/run/netns") if subprocess.run(["test", "-d", "/run/netns"]).returncode == 0 else None
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "br0", "type", "bridge")
    sh("ip", "addr", "add", f"{BRIDGE}/24", "dev", "br0")
    sh("ip", "link", "set", "br0", "up")


class Answering(process.Server):
    """A program whose ready line may name an address of the namespaces."""

    def wait_ready(self, timeout=30.0):
        deadline = time.monotonic() + timeout
        while not self.stdout and self.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self.stdout or not self.stdout[0].startswith("ready "):
            raise Fail(f"{self.name()}: no ready line within {timeout:g} s; stderr {self.log[-400:]}")
        self.addresses = dict(w.split("=", 1) for w in self.stdout[0].split()[1:])
        return self


class NetEtcd:
    def __init__(self, rig):
        self.address = f"{rig.host('etcd')}:2379"
        peer, url = f"http://{rig.host('etcd')}:2380", f"http://{self.address}"
        folder = rig.context.file(f"etcd-{rig.name}")
        self.server = rig.program(*rig.inside("etcd"), "etcd", "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url,
                                  "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                                  "--log-level", "error")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            done = subprocess.run(["etcdctl", "--endpoints", self.address, "get", "x"], env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
                                  capture_output=True, timeout=10)
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise Fail("etcd did not get healthy within 20 s")


class NetRig(Rig):
    _hosts: dict[str, int] = {}

    def host(self, name):
        """Its address; its namespace is made when it is first asked for."""
        if name not in self._hosts:
            number = len(self._hosts) + 1
            self._hosts[name] = number
            space, near, far = f"w{number}", f"v{number}", f"p{number}"
            sh("ip", "netns", "add", space)
            sh("ip", "link", "add", near, "type", "veth", "peer", "name", far)
            sh("ip", "link", "set", far, "netns", space)
            sh("ip", "link", "set", near, "master", "br0", "up")
            inside = ("ip", "-n", space)
            sh(*inside, "link", "set", "lo", "up")
            sh(*inside, "addr", "add", f"10.77.0.{number}/24", "dev", far)
            sh(*inside, "link", "set", far, "up")
            for line in ("add table inet f", "add chain inet f in { type filter hook input priority 0 ; }"):
                sh("ip", "netns", "exec", space, "nft", line)
        return f"10.77.0.{self._hosts[name]}"

    def inside(self, name):
        self.host(name)
        return ["ip", "netns", "exec", f"w{self._hosts[name]}"]

    def start_etcd(self):
        return NetEtcd(self)

    def program(self, *argv, env=None):
        server = Answering([str(a) for a in argv], env=env)
        self.context._own.append(server)
        return server

    def start(self, name, command, *flags, env=None):
        return self.program(*self.inside(name), self.weft, command, *flags, "--cluster", self.name, "--etcd", self.etcd.address,
                            "--model", self.model.path, env={**self.env, **(env or {})})

    # -- faults ------------------------------------------------------------------------------------------------------
    def deaf(self, name, to):
        """`name` hears nothing from `to`."""
        sh(*self.inside(name), "nft", f"add rule inet f in ip saddr {self.host(to)} drop")

    def cut(self, a, b):
        self.deaf(a, b)
        self.deaf(b, a)

    def lossy(self, name, percent):
        sh(*self.inside(name), "nft", f"add rule inet f in numgen random mod 100 < {percent} drop")

    def heal(self):
        for number in self._hosts.values():
            sh("ip", "netns", "exec", f"w{number}", "nft", "flush chain inet f in")

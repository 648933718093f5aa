"""Layer shards of several ranks (--tensor-parallel), and the pool of expert shards that serves shards of any number."""
import signal
import time

from lib import web
from lib.case import equal, expect
from lib.context import Served

from cases.invariance import answer, requests
from rig.cluster import Load, Rig
from rig.devices import STEP, DeviceRig, ends_for_its_device, kill_an_expert_shard
from rig.scenarios import end, others_live, until

CPU, DEVICES = [], []
TWO = ("--tensor-parallel", "2")


def scenario(limit, where):
    def register(function):
        function.limit = limit
        where.append(function)
        return function
    return register


def own_answers(rig, streams, lengths):
    """What the cluster gives to each request alone: routed experts of a pool are added whole, those of one process by ranks, so its bits are its own."""
    todo = requests(rig.context, rig.model, streams)
    for i, request in enumerate(todo):
        request["max_tokens"] = lengths[i % 4]
    return todo, [answer(rig.served.generate(timeout=60, **r).need("a stream alone")) for r in todo]


class RanksRig(Rig):
    """Layer shards of two ranks on the CPU."""

    def known_answers(self, streams):
        return own_answers(self, streams, (60, 24, 90, 40))


class DeviceRanksRig(DeviceRig):
    """Layer shards of two devices of the emulator; expert shards have one each."""

    def known_answers(self, streams):
        return own_answers(self, streams, (14, 6, 20, 9))

    def layer(self, group=0, stage=0, env=None):
        return self.shard(f"layers-{group}-{stage}", "--role", "layers", "--group", group, "--stage", stage, "--stages", self.stages,
                          *TWO, *self.computes(), *STEP, "--link-rows", self.rows, "--http", "127.0.0.1:0", env={"WEFT_SIMT_DEVICES": "2", **(env or {})})


class NearRanksRig(DeviceRanksRig):
    """The same with rows from device to device."""

    rows = "auto"


def restart_layers(rig, load, stage, limit):
    name = f"layers-0-{stage}"
    with load.disturbed(f"after SIGKILL of {name}"):
        rig.shards[name].kill()
        rig.layer(0, stage).wait_ready(limit)
        rig.wait(experts=rig.n_experts, layers=rig.stages)
        load.settle(2)


@scenario(240, CPU)
def ranks_kills(context, rng, size):
    """Two stages of two ranks: streams in company have the bytes of streams alone; SIGKILL of expert shards, then of a stage and the lead, changes none."""
    rig = RanksRig(context, rng, experts=3, replicas=2, stages=2, flags=TWO)
    load = Load(rig, lone=True)
    load.settle()
    for _ in range(2 if size == "short" else 20):
        victim = rng.choice(rig.experts_alive())
        with load.disturbed(f"after SIGKILL of {victim}") as fault:
            rig.shards[victim].kill()
            others_live(rig, {victim}, f"SIGKILL of {victim}")
            rig.wait(experts=2)
            fault.over()
            rig.expert(int(victim.split("-")[1])).wait_ready(30)
            rig.wait(experts=3)
    for stage in (1, 0):
        restart_layers(rig, load, stage, 30)
    end(rig, load, "ranks under kills")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(120, CPU)
def ranks_no_experts(context, rng, size):
    """Experts that nobody has stand the ranks still, and no more: with the expert shard back the same streams end with the same bytes."""
    rig = RanksRig(context, rng, experts=1, flags=TWO)
    load = Load(rig)
    load.settle()
    lead = rig.shards["layers-0-0"]
    for _ in range(2):
        with load.disturbed("after SIGKILL of the only expert shard"):
            rig.shards["experts-0"].kill()
            expect(until(lambda: any("suspect" in line for line in list(lead.stderr)), 20), "the lead does not miss its experts")
            time.sleep(1)
            rig.expert(0).wait_ready(30)
            rig.wait(experts=1)
            load.settle(2)
    expect(lead.alive, "the lead ended for want of experts")
    end(rig, load, "ranks without experts")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(120, CPU)
def ranks_of_two_degrees(context, rng, size):
    """A pool serves layer shards of any degree; a group of another degree than the oldest is no replica, and a stage of another degree no stage: both by name."""
    rig = RanksRig(context, rng, experts=2, flags=TWO)
    load = Load(rig)
    load.settle()
    rig.flags = ()
    other = rig.layer(1, 0).wait_ready(30)
    expect(until(lambda: len(rig.serving("layers")) == 2, 20), "the other group does not say that it serves")
    words = ("group_refused", "layers-1-0 computes as cpu,", "layers-0-0 as cpu.tp2")
    expect(until(lambda: any(all(w in line for w in words) for line in list(rig.router.stderr)), 20),
           f"the router does not say that {words}: {list(rig.router.stderr)[-3:]}")
    equal([g["group"] for g in rig.status()["groups"]], [0], "groups that the router uses")
    expect(not any("differs" in line for line in list(other.stderr)), f"experts refused a layer shard of one rank: {list(other.stderr)[-3:]}")
    # Alone it is the oldest, and gives what one process gives.
    load.stop("groups of two degrees")
    rig.shards["layers-0-0"].signal(signal.SIGTERM)
    equal(rig.shards["layers-0-0"].wait(40), 0, "exit code of the group of two ranks after SIGTERM")
    del rig.shards["layers-0-0"]
    expect(until(lambda: [g["group"] for g in rig.status()["groups"] if g["whole"]] == [1], 20), f"the group of one rank is not used: {rig.status()['groups']}")
    served = context.serve(rig.model, "--profile", "exact")
    wanted = [answer(served.generate(timeout=60, **r).need("weft serve")) for r in rig.todo[:3]]
    for i, request in enumerate(rig.todo[:3]):
        equal(answer(Served(context, rig.router, rig.model).generate(timeout=60, **request).need("a stream")), wanted[i], f"stream {i} of a group of one rank")
    served.stop()
    rig.check_idle("groups of two degrees")
    rig.stop()
    return f"{load.done} streams"


@scenario(120, CPU)
def ranks_of_two_stages(context, rng, size):
    """A stage of another degree than its lead is refused by name, with both values."""
    rig = RanksRig(context, rng, experts=1, stages=2, flags=TWO, streams=2)
    load = Load(rig, lone=True)
    load.settle()
    with load.disturbed("after a stage came back with another degree"):
        rig.shards["layers-0-1"].kill()
        rig.flags = ()
        wrong = rig.layer(0, 1).wait_ready(30)
        words = ("numeric identity differs", "cpu.tp2")
        told = lambda: [line for shard in (wrong, rig.shards["layers-0-0"]) for line in list(shard.stderr) if all(w in line for w in words)]
        expect(until(told, 30), f"nobody says that {words}: {list(wrong.stderr)[-3:]}, {list(rig.shards['layers-0-0'].stderr)[-3:]}")
        wrong.kill()
        rig.flags = TWO
        rig.layer(0, 1).wait_ready(30)
        rig.wait(experts=1, layers=2)
        load.settle()
    end(rig, load, "stages of two degrees")
    return f"{load.done} streams"


@scenario(300, DEVICES)
def simt_ranks(context, rng, size):
    """A layer shard of two devices on simt: streams in company have the bytes of streams alone, before and after SIGKILL of an expert shard, a device that fails, and what NCCL refuses."""
    rig = DeviceRanksRig(context, rng, experts=2, replicas=2, streams=3)
    load = Load(rig, lone=True)
    load.settle()
    lead = rig.shards["layers-0-0"]
    table = web.get(lead.http, "/metrics")[1]
    for word in ('weft_backend_info{device="simt:0-1 emulated device",identity="simt-1.sm80.bf16.tp2"} 1', 'weft_device_bytes{device="1",state="used"}'):
        expect(word in table, f"/metrics of {lead.name()} has no {word}")
    kill_an_expert_shard(rig, load)
    # Late enough that each stream has had a token: one that groups break off twice before is held to be what breaks them.
    for fault in (f"async:{rng.randrange(6000, 9000)}", f"nccl_send:{rng.randrange(400, 900)}"):
        with load.disturbed(f"after {fault}"):
            rig.shards["layers-0-0"].kill()
            ends_for_its_device(rig.layer(env={"WEFT_SIMT_FAULT": fault}), 90, "layers-0-0")
            rig.layer().wait_ready(60)
            rig.wait(experts=2, layers=1)
            load.settle(2)
    end(rig, load, "ranks on simt")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(240, DEVICES)
def simt_ranks_near(context, rng, size):
    """The same with rows of the first rank that go from device to device: all expert shards are near, and SIGKILL of one changes nothing."""
    rig = NearRanksRig(context, rng, experts=2, replicas=2, streams=3)
    load = Load(rig)
    load.settle()
    near = {"layers-0-0": 2, "experts-0": 1, "experts-1": 1}
    expect(until(lambda: rig.near_links() == near, 20), f"links with near rows: {rig.near_links()}, expected {near}")
    kill_an_expert_shard(rig, load)
    expect(until(lambda: rig.near_links() == near, 20), f"links with near rows after a kill: {rig.near_links()}, expected {near}")
    end(rig, load, "near rows of ranks")
    return f"{load.done} streams, stall {load.worst:.2f} s"

"""Clusters whose shards compute on a device. `simt` is the CUDA sources on a CPU, so what is here is the whole way of a token, but for the chip."""
import signal

from lib import web
from lib.case import Fail, Skip, equal, expect

from cases.invariance import answer, same
from rig.cluster import Load, Rig, known_answers
from rig.scenarios import end, others_live, until

ALL = []
MODEL = "dots3-mixed"
RESOURCE = 4       # exit code: the device is of no use any more
STEP = ("--max-seqs", "8", "--max-context", "512", "--chunk-tokens", "64", "--kv-bytes", "16M")


def scenario(limit):
    def register(function):
        function.limit = limit
        ALL.append(function)
        return function
    return register


class DeviceRig(Rig):
    """A rig whose shards, but for those that a scenario starts otherwise, compute on `backend`; so does the one process that knows the answers."""

    backend, profile, rows = "simt", "bf16", "tcp"

    def choose_model(self, context):
        for model in context.models:
            if model.path.name == MODEL:
                return model
        raise Skip(f"no {MODEL} in the data folders")

    def computes(self):
        return "--backend", self.backend, "--profile", self.profile

    def known_answers(self, streams):
        return known_answers(self.context, self.model, streams, (14, 6, 20, 9), *self.computes(), *STEP)

    def layer(self, group=0, stage=0, env=None):
        return self.shard(f"layers-{group}-{stage}", "--role", "layers", "--group", group, "--stage", stage, "--stages", self.stages,
                          *self.computes(), *STEP, "--link-rows", self.rows, "--http", "127.0.0.1:0", env=env)

    def expert(self, number, env=None):
        return self.shard(f"experts-{number}", "--role", "experts", *self.computes(), "--link-rows", self.rows, "--http", "127.0.0.1:0", env=env)

    def near_links(self):
        """Of each shard: links whose rows go from device to device."""
        return {name: web.total(web.metrics(shard.http), "weft_near_links") for name, shard in self.shards.items() if shard.alive}


class NearRig(DeviceRig):
    """The same with rows from device to device."""

    rows = "auto"


def ends_for_its_device(shard, limit, what):
    expect(until(lambda: not shard.alive, limit), f"{what}, whose device failed, lives after {limit:g} s; its log ends {list(shard.stderr)[-3:]}")
    equal(shard.wait(5), RESOURCE, f"exit code of {what}, whose device failed")
    expect(until(lambda: any("device_failed" in line for line in list(shard.stderr)), 5),
           f"{what} does not say that its device failed: {list(shard.stderr)[-3:]}")


def kill_an_expert_shard(rig, load):
    """SIGKILL under streams, then another in its place. Its name."""
    victim = rig.rng.choice(rig.experts_alive())
    with load.disturbed(f"after SIGKILL of {victim}") as fault:
        rig.shards[victim].kill()
        load.settle(2)
        others_live(rig, {victim}, f"SIGKILL of {victim}")
        fault.over()
        rig.expert(int(victim.split("-")[1])).wait_ready(60)
        rig.wait(experts=rig.n_experts)
    return victim


def fail_an_expert_device(rig, load, launches, where):
    """A device that fails within so many launches: its process says so and ends; then a sound one in its place."""
    rig.shards["experts-1"].kill()
    rig.wait(experts=rig.n_experts - 1)
    with load.disturbed(f"after a device failed {where}") as fault:
        shard = rig.expert(1, env={"WEFT_SIMT_FAULT": f"async:{rig.rng.randrange(*launches)}"})
        ends_for_its_device(shard, 60, "an expert shard")
        rig.wait(experts=rig.n_experts - 1)
        load.settle(2)
        fault.over()
        rig.expert(1).wait_ready(60)
        rig.wait(experts=rig.n_experts)


@scenario(240)
def simt_kill_expert(context, rng, size):
    """All shards on simt: the tokens and logprobs of one process; SIGKILL of an expert shard whose experts have a replica loses and changes nothing."""
    rig = DeviceRig(context, rng, experts=3, replicas=2, streams=4)
    load = Load(rig)
    load.settle()
    told = {m["id"]: m["device"] for m in rig.status()["members"] if m["role"] != "router"}
    equal(set(told.values()), {"simt:0 emulated device"}, f"devices of the members {sorted(told)}")
    for shard in rig.shards.values():
        expect('weft_backend_info{device="simt:0 emulated device",identity="simt-1.sm80.bf16"} 1' in web.get(shard.http, "/metrics")[1],
               f"/metrics of {shard.name()} does not say what computes")
    for _ in range(2 if size == "short" else 20):
        kill_an_expert_shard(rig, load)
    end(rig, load, "expert shards on simt killed")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(240)
def simt_near_rows(context, rng, size):
    """Rows from device to device: the same bytes; SIGKILL of an expert shard, then a device that fails while rows are on their way: nothing is lost."""
    rig = NearRig(context, rng, experts=3, replicas=2, streams=4)
    load = Load(rig)
    load.settle()
    near = {"layers-0-0": 3, "experts-0": 1, "experts-1": 1, "experts-2": 1}
    expect(until(lambda: rig.near_links() == near, 20), f"links with near rows: {rig.near_links()}, expected {near}")
    victim = kill_an_expert_shard(rig, load)
    expect(until(lambda: rig.near_links() == near, 20), f"links with near rows after {victim} came back: {rig.near_links()}, expected {near}")
    fail_an_expert_device(rig, load, (50, 400), "with rows on their way")
    end(rig, load, "near rows")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(240)
def simt_two_stages(context, rng, size):
    """A group of two stages on simt: the tokens of one process; SIGKILL of an expert shard, then of a stage: nothing is lost or changed."""
    rig = DeviceRig(context, rng, experts=2, replicas=2, stages=2, streams=4)
    load = Load(rig, lone=True)
    load.settle()
    kill_an_expert_shard(rig, load)
    with load.disturbed("after SIGKILL of stage 1"):
        rig.shards["layers-0-1"].kill()
        rig.layer(0, 1).wait_ready(60)
        rig.wait(experts=2, layers=2)
        load.settle(2)
    end(rig, load, "two stages on simt")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(180)
def simt_mixed_identities(context, rng, size):
    """An expert shard on a CPU, and one with another profile, come to a pool on simt: they are refused by name, with both values, and nothing is lost."""
    rig = DeviceRig(context, rng, experts=2, replicas=1, streams=2)
    load = Load(rig)
    load.settle(2)
    epoch = rig.status()["epoch"]
    for name, flags, identity in (("plain", ("--backend", "cpu"), "cpu"),
                                  ("exact", ("--backend", "simt", "--profile", "exact"), "simt-1.sm80.exact")):
        stranger = rig.shard(name, "--role", "experts", *flags).wait_ready(60)
        words = (name, identity, "simt-1.sm80.bf16")
        expect(until(lambda: all(w in context.run("status", "--addr", rig.router.grpc).out for w in words), 30),
               f"weft status does not say that {words}: {context.run('status', '--addr', rig.router.grpc).out}")
        told = {m["id"]: m for m in rig.status()["members"]}
        expect(told[name]["experts"] == 0, f"a shard that computes as {identity} was given experts: {told[name]}")
        stranger.signal(signal.SIGTERM)
        equal(stranger.wait(40), 0, f"exit code of {name} after SIGTERM")
        del rig.shards[name]
    equal(rig.status()["epoch"], epoch, "epoch after strangers registered")
    end(rig, load, "mixed identities")
    return f"{load.done} streams"


@scenario(240)
def simt_expert_device_fails(context, rng, size):
    """The device of an expert shard fails in a round: the process says so and ends with 4, others answer, nothing is lost or changed."""
    rig = DeviceRig(context, rng, experts=2, replicas=2, streams=4)
    load = Load(rig)
    load.settle()
    fail_an_expert_device(rig, load, (2, 400), "in a round")
    end(rig, load, "a device of an expert shard failed")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(240)
def simt_layer_device_fails(context, rng, size):
    """The device of the lead, then of the other stage, fails in a step: the process ends with 4; its streams go on with the same bytes when it is back."""
    rig = DeviceRig(context, rng, experts=1, stages=2, streams=3)
    load = Load(rig, lone=True)
    load.settle(2)
    for stage in (0, 1):
        name = f"layers-0-{stage}"
        with load.disturbed(f"after the device of {name} failed"):
            rig.shards[name].kill()
            shard = rig.layer(0, stage, env={"WEFT_SIMT_FAULT": f"async:{rng.randrange(300, 2000)}"})
            ends_for_its_device(shard, 90, name)
            rig.layer(0, stage).wait_ready(60)
            rig.wait(experts=1, layers=2)
            load.settle(2)
    end(rig, load, "devices of layer shards failed")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(120)
def simt_inside(context, rng, size):
    """`weft serve --backend simt` with stages and expert shards inside answers as without; a device that fails is told, and nothing hangs."""
    model = DeviceRig.choose_model(None, context)
    flags = ("--backend", "simt", *STEP)
    todo, wanted = known_answers(context, model, 4, (14, 6, 20, 9), "--backend", "simt", "--profile", "bf16", *STEP)
    served = context.serve(model, *flags, "--stages", "2", "--expert-shards", "2")
    for i, request in enumerate(todo):
        same(answer(served.generate(timeout=60, **request).need(f"stream {i}")), wanted[i], f"stream {i}, two stages and two expert shards inside")
    served.stop()
    served = context.serve(model, *flags, "--stages", "2", "--expert-shards", "2", env={"WEFT_SIMT_FAULT": "async:1500"})
    code = None
    for _ in range(20):
        result = served.generate(timeout=30, **todo[2])
        code = result.code and result.code.name
        if code not in (None, "OK"):
            break
    equal(code, "INTERNAL", "status of a stream whose device failed")
    expect(until(lambda: web.get(served.server.http, "/readyz")[0] == 503, 10), "it is ready though its device failed")
    return f"{len(todo)} streams"

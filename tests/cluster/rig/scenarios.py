"""Faults, each with what is promised of it. A scenario gets (context, rng, size), raises Fail, and returns its figure.

Stall is the longest gap between two tokens of one stream, less the median gap before the fault."""
import shutil
import signal
import time

from lib import web
from lib.case import Fail, Skip, equal, expect
from lib.client import Client

from rig.cluster import Authority, EtcdTls, EtcdTrio, Load, Rig, within
from rig.host import METER, same_epoch
from rig.net import NetRig

ALL, FIGURES = [], {}


def scenario(limit):
    def register(function):
        function.limit = limit
        ALL.append(function)
        return function
    return register


def figures(name, **values):
    FIGURES.setdefault(name, {}).update({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()})


def end(rig, load, what):
    load.stop(what)
    rig.check_idle(what)
    rig.check_files()
    rig.stop()


def until(met, limit):
    """Whether that becomes true within so many seconds."""
    deadline = time.monotonic() + limit
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def still(figure, seconds, limit):
    """The figure once it has been the same for so many seconds."""
    deadline, since, last = time.monotonic() + limit, time.monotonic(), figure()
    while time.monotonic() < since + seconds:
        expect(time.monotonic() < deadline, f"it changes for {limit:g} s and more; it is {last}")
        time.sleep(0.05)
        if figure() != last:
            since, last = time.monotonic(), figure()
    return last


def others_live(rig, but, what):
    for name, shard in rig.shards.items():
        if name not in but:
            shard.check_alive(f"{what} ({name})")
    rig.router.check_alive(what)


# -- the campaign itself ----------------------------------------------------------------------------------------------

@scenario(90)
def outage_is_measured(context, rng, size):
    """Every process stands still for 4 s: the campaign measures that, whichever way it asks for the stall."""
    rig = Rig(context, rng, experts=2)
    load = Load(rig)
    load.settle()
    for says_when in (True, False):
        with load.disturbed("after everything stood still") as fault:
            frozen = (rig.router, *rig.shards.values())
            for process in frozen:
                process.signal(signal.SIGSTOP)
            time.sleep(4)
            if says_when:
                fault.over()
            for process in frozen:
                process.signal(signal.SIGCONT)
        rig.wait(experts=2, layers=1)
        load.settle()
    end(rig, load, "everything stood still")
    figures("outage_is_measured", stalls_s=[round(s, 2) for s in load.stalls])
    expect(min(load.stalls) > 3.9, f"everything stood still for 4 s, twice; the stalls measured: {load.stalls}")
    return f"{load.done} streams, stalls measured {', '.join(f'{s:.2f}' for s in load.stalls)} s"


# -- expert shards ----------------------------------------------------------------------------------------------------

@scenario(240)
def kill_with_replica(context, rng, size):
    """SIGKILL of an expert shard at random moments, its experts have a replica: nothing lost, stall at most 0.5 s."""
    rig = Rig(context, rng, experts=3, replicas=2)
    load = Load(rig)
    load.settle()
    kills = 6 if size == "short" else 200
    for _ in range(kills):
        victim = rng.choice(rig.experts_alive())
        time.sleep(rng.uniform(0.0, 0.3))
        with load.disturbed(f"after SIGKILL of {victim}") as fault:
            rig.shards[victim].kill()
            others_live(rig, {victim}, f"SIGKILL of {victim}")
            rig.wait(experts=2)
            fault.over()
            rig.expert(int(victim.split("-")[1])).wait_ready(30)
            rig.wait(experts=3)
    end(rig, load, f"{kills} kills with a replica")
    figures("kill_with_replica", kills=kills, stall_s=load.worst, median_s=load.median)
    within(load.worst, 0.5, "SIGKILL of an expert shard with a replica")
    return f"{kills} kills, {load.done} streams, stall {load.worst:.3f} s"


@scenario(300)
def kill_without_replica(context, rng, size):
    """SIGKILL of an expert shard without a replica: nothing lost, stall at most 5 s with the small model."""
    rig = Rig(context, rng, experts=3, replicas=1)
    load = Load(rig)
    load.settle()
    kills = 5 if size == "short" else 100
    for i in range(kills):
        victim = rng.choice(rig.experts_alive())
        time.sleep(rng.uniform(0.0, 0.3))
        with load.disturbed(f"after SIGKILL of {victim}"):
            rig.shards[victim].kill()
            if i % 2:      # back at once, under the same name, or after the survivors have taken over
                rig.wait(experts=2)
            rig.expert(int(victim.split("-")[1])).wait_ready(30)
            rig.wait(experts=3)
            load.settle()
    end(rig, load, f"{kills} kills without a replica")
    figures("kill_without_replica", kills=kills, stall_s=load.worst, median_s=load.median)
    within(load.worst, 5.0, "SIGKILL of an expert shard without a replica")
    return f"{kills} kills, {load.done} streams, stall {load.worst:.3f} s"


@scenario(120)
def kill_all_experts(context, rng, size):
    """All expert shards at once: streams stand still, none is wrong; they go on within 5 s of the shards' return."""
    rig = Rig(context, rng, experts=2, replicas=1)
    load = Load(rig)
    load.settle()
    for name in rig.experts_alive():
        rig.shards[name].kill()
    time.sleep(2)
    load.check("without any expert shard")
    for number in range(2):
        rig.expert(number)
    for name in ("experts-0", "experts-1"):
        rig.shards[name].wait_ready(30)
    back, before = time.monotonic(), load.done
    while load.done == before and time.monotonic() < back + 20 and not load.faults:
        time.sleep(0.02)
    took = METER.since(back, "recovery")
    rig.wait(experts=2)
    load.settle()
    end(rig, load, "all expert shards lost")
    figures("kill_all_experts", recovery_s=took)
    expect(took < 5, f"streams went on {took:.1f} s after the shards were back; the bar is 5 s")
    return f"{load.done} streams, on again after {took:.2f} s"


@scenario(240)
def freeze(context, rng, size):
    """SIGSTOP of an expert shard for 10 s, then SIGCONT: stall at most 1.5 s, its late answers change nothing, it comes back."""
    rig = Rig(context, rng, experts=3, replicas=2)
    load = Load(rig)
    load.settle()
    for _ in range(2 if size == "short" else 20):
        victim = rng.choice(rig.experts_alive())
        time.sleep(rng.uniform(0.0, 0.3))
        with load.disturbed(f"after SIGSTOP of {victim}") as fault:
            rig.shards[victim].signal(signal.SIGSTOP)
            time.sleep(10)
            fault.over()
            rig.shards[victim].signal(signal.SIGCONT)
            rig.wait(experts=3)
            others_live(rig, set(), f"SIGSTOP and SIGCONT of {victim}")
    end(rig, load, "frozen expert shards")
    figures("freeze", stall_s=load.worst, median_s=load.median)
    within(load.worst, 1.5, "SIGSTOP of an expert shard")
    return f"{load.done} streams, stall {load.worst:.3f} s"


@scenario(240)
def rescale(context, rng, size):
    """2 → 4 → 3 → 2 expert shards under 16 streams: nothing fails, the same bytes; the longest stall is told."""
    rig = Rig(context, rng, experts=2, streams=16)
    load = Load(rig)
    load.settle()
    first, cycles = rig.status()["epoch"], 2 if size == "short" else 20
    for _ in range(cycles):
        with load.disturbed("while it was rescaled"):
            rig.expert(2)
            rig.expert(3)
            for name in ("experts-2", "experts-3"):
                rig.shards[name].wait_ready(30)
            rig.wait(experts=4)
            for name, left in (("experts-3", 3), ("experts-2", 2)):
                rig.shards[name].signal(signal.SIGTERM)
                equal(rig.shards[name].wait(40), 0, f"exit code of {name} after SIGTERM")
                rig.wait(experts=left)
    told = rig.status()
    last, moved = told["epoch"], told["placement"]
    expect(moved["moved_bytes"] <= 1.05 * moved["moved_least_bytes"],
           f"bytes moved: {moved['moved_bytes']}, and {moved['moved_least_bytes']} would have done; the bar is 1.05 of that")
    expect(moved["moved_bytes"] > 0, "bytes moved: none, over all rescales")
    expect(last >= first + 3 * cycles, f"epoch: {first} before, {last} after {cycles} cycles of three changes")
    end(rig, load, f"{cycles} rescales")
    figures("rescale", cycles=cycles, moved_over_least=moved["moved_bytes"] / moved["moved_least_bytes"], stall_s=load.worst,
            stalls_s=[round(s, 4) for s in load.stalls], median_s=load.median, streams=load.done)
    within(load.worst, 0.5, "a rescale")
    return f"{cycles} cycles, {load.done} streams, longest stall {1e3 * load.worst:.0f} ms, median gap " \
           f"{1e3 * load.median:.1f} ms, bytes moved {moved['moved_bytes'] / moved['moved_least_bytes']:.3f} of the least"


FAILPOINTS = ("experts.before_load", "experts.after_load", "experts.before_ack", "experts.after_ack", "experts.after_commit",
              "experts.before_answer", "experts.after_answer")


@scenario(300)
def die_at_failpoints(context, rng, size):
    """A joining expert shard dies at each named point of a rescale; the next rescale works, nothing is lost."""
    if context.failpoints is None:
        raise Skip("no binary with failpoints (--failpoints)")
    rig = Rig(context, rng, experts=2, replicas=1, weft=context.failpoints)
    load = Load(rig)
    load.settle()
    died = []
    for point in FAILPOINTS:
        with load.disturbed(f"after a death at {point}") as fault:
            shard = rig.expert(2, env={"WEFT_FAILPOINTS": f"{point}=abort"})
            deadline = time.monotonic() + 20
            while shard.alive and time.monotonic() < deadline:
                time.sleep(0.02)
            expect(not shard.alive, f"a shard that should have died at {point} lives; its log ends {list(shard.stderr)[-3:]}")
            shard.kill()
            died.append(point)
            load.settle()
            fault.over()
            rig.wait(experts=2)
            rig.expert(2).wait_ready(30)
            begin = time.monotonic()
            rig.wait(experts=3)
            took = METER.since(begin, f"a rescale after a death at {point}")
            expect(took < 10, f"after a death at {point} the next rescale took {took:.1f} s; the bar is 10 s")
            rig.shards["experts-2"].signal(signal.SIGTERM)
            equal(rig.shards["experts-2"].wait(40), 0, "exit code after SIGTERM")
            rig.wait(experts=2)
    rig.shards.pop("experts-2")
    end(rig, load, "deaths at failpoints")
    figures("die_at_failpoints", points=len(died), stall_s=load.worst)
    within(load.worst, 5.0, "a death inside a rescale")
    return f"{len(died)} points, {load.done} streams, stall {load.worst:.2f} s"


@scenario(120)
def duplicate_id(context, rng, size):
    """A second process with the id of a live expert shard: the newer one serves, the older one ends, nothing is lost."""
    rig = Rig(context, rng, experts=3, replicas=2)
    load = Load(rig)
    load.settle()
    old = rig.shards["experts-1"]
    rig.expert(1).wait_ready(30)
    code = old.wait(20)
    expect(code not in (0, 1), f"exit code of the shard whose id was taken: {code}")
    rig.wait(experts=3)
    load.settle()
    end(rig, load, "two shards with one id")
    return f"{load.done} streams, the older one ended with {code}"


# -- layer shards and the router --------------------------------------------------------------------------------------

@scenario(240)
def kill_layers(context, rng, size):
    """SIGKILL of a layer shard of one of two groups: its streams go on in the other; it comes back."""
    rig = Rig(context, rng, experts=2, groups=2)
    load = Load(rig)
    load.settle()
    for _ in range(3 if size == "short" else 30):
        group = rng.randrange(2)
        with load.disturbed(f"after SIGKILL of layers-{group}-0") as fault:
            rig.shards[f"layers-{group}-0"].kill()
            load.settle()
            fault.over()
            rig.layer(group).wait_ready(30)
            rig.wait(experts=2, layers=2)
    end(rig, load, "layer shards killed")
    figures("kill_layers", stall_s=load.worst)
    within(load.worst, 3.0, "SIGKILL of a layer shard")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(240)
def kill_stage(context, rng, size):
    """SIGKILL of a stage of the only group: its streams wait and go on with the same bytes when it is back."""
    rig = Rig(context, rng, experts=2, stages=2)
    load = Load(rig, lone=True)
    load.settle()
    for stage in (1, 0) if size == "short" else (1, 0) * 10:
        with load.disturbed(f"after SIGKILL of stage {stage}"):
            rig.shards[f"layers-0-{stage}"].kill()
            time.sleep(rng.uniform(0, 1))
            rig.layer(0, stage).wait_ready(30)
            rig.wait(experts=2, layers=2)
            load.settle()
    end(rig, load, "stages killed")
    figures("kill_stage", stall_s=load.worst)
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(90)
def stage_with_other_flags(context, rng, size):
    """A stage that is missing, then one with another --chunk-tokens: weft status says which stage and what; with the right value it serves."""
    usual = ("--kv-bytes", "64M")
    rig = Rig(context, rng, experts=1, stages=2, flags=usual)
    for flags, words in (((), "stage 1 is not connected"), (("--chunk-tokens", "64"), "stage 1: chunk_tokens is 512 at the lead and 64 here")):
        rig.shards["layers-0-1"].kill()
        if flags:
            rig.flags = (*usual, *flags)
            rig.layer(0, 1).wait_ready(30)
            rig.flags = usual
        begin, said = time.monotonic(), ""
        while words not in said and time.monotonic() < begin + 10:
            said = context.run("status", "--addr", rig.router.grpc).out
            time.sleep(0.1)
        expect(words in said, f"weft status does not say that {words}: {said}")
    rig.shards["layers-0-1"].kill()
    rig.layer(0, 1).wait_ready(30)
    rig.wait(experts=1, layers=2)
    load = Load(rig)
    end(rig, load, "a stage with other flags")
    return f"{load.done} streams"


@scenario(120)
def two_leads(context, rng, size):
    """A second lead for a group of two stages, under another id: the newer one serves, they do not fight; it goes, the older one serves again."""
    rig = Rig(context, rng, experts=2, stages=2)
    load = Load(rig, lone=True)
    load.settle()
    old = rig.shards["layers-0-0"]
    runs = lambda: sum("run_began" in line for shard in (old, twin) for line in list(shard.stderr))
    twin = rig.shard("twin", "--role", "layers", "--group", 0, "--stage", 0, "--stages", 2, "--profile", "exact").wait_ready(30)
    rig.wait(experts=2, layers=3)
    load.settle()
    expect(until(lambda: any("displaced" in line for line in list(old.stderr)), 30), "the older lead does not say that another has its place")
    before = still(runs, 2, 30)
    time.sleep(4)
    equal(runs(), before, "runs that began while two leads had one place")
    with load.disturbed("after SIGKILL of the newer lead"):
        twin.kill()
        del rig.shards["twin"]
        load.settle()
        rig.wait(experts=2, layers=2)
    end(rig, load, "two leads of one group")
    figures("two_leads", stall_s=load.worst)
    return f"{load.done} streams, {before} runs, stall {load.worst:.2f} s after the newer one was killed"


@scenario(120)
def smaller_stage(context, rng, size):
    """A stage comes back with less KV memory: its lead says so and ends, and the group serves on when it is started again."""
    rig = Rig(context, rng, experts=2, stages=2, flags=("--kv-bytes", "64M"))
    load = Load(rig)
    load.settle()
    rig.flags = ("--kv-bytes", "48M")
    rig.shards["layers-0-1"].kill()
    lead = rig.shards["layers-0-0"]
    rig.layer(0, 1).wait_ready(30)
    equal(lead.wait(30), 4, "exit code of a lead whose stage has less KV memory than before")
    expect(any("KV memory" in line for line in lead.stderr), f"the lead does not say why it ended: {list(lead.stderr)[-3:]}")
    rig.layer(0, 0).wait_ready(30)
    rig.wait(experts=2, layers=2)
    load.settle()
    end(rig, load, "a smaller stage")
    return f"{load.done} streams"


@scenario(120)
def restart_router(context, rng, size):
    """SIGKILL of the router: calls end with an error, never a false finish; KV is free in 3 s; it serves again."""
    rig = Rig(context, rng, experts=2)
    for _ in range(2 if size == "short" else 10):
        load = Load(rig, allow=("UNAVAILABLE",))
        load.settle()
        rig.router.kill()
        rig.start_router()
        begin = time.monotonic()
        rig.router.wait_ready(20)
        rig.wait(experts=2, layers=1)
        took = time.monotonic() - begin
        load._end.set()
        for thread in load._threads:
            thread.join(60)
        load.client.close()
        load.check("router killed")
        rig.served.close()
        rig.served.server, rig.served.client = rig.router, Client(rig.router.grpc)
        rig.check_idle("the router's restart", bar=3.0)
    last = Load(rig)
    last.settle()
    rig.files = rig.open_files()
    end(rig, last, "after the router's restart")
    figures("restart_router", recovery_s=took)
    return f"{load.done} streams answered, {load.refused} told UNAVAILABLE, serving again after {took:.2f} s"


@scenario(240)
def roll(context, rng, size):
    """SIGTERM and restart of every expert shard and of each group in turn, under load: nothing fails, exit 0."""
    rig = Rig(context, rng, experts=3, groups=2, flags=("--drain-seconds", "30"))
    load = Load(rig)
    load.settle()
    for name in list(rig.shards):
        rig.shards[name].signal(signal.SIGTERM)
        equal(rig.shards[name].wait(40), 0, f"exit code of {name} after SIGTERM")
        role, *rest = name.split("-")
        started = rig.expert(int(rest[0])) if role == "experts" else rig.layer(int(rest[0]), int(rest[1]))
        started.wait_ready(30)
        rig.wait(experts=3, layers=2)
        load.check(f"after the restart of {name}")
    end(rig, load, "a rolling restart")
    return f"{load.done} streams, 0 failed"


# -- etcd -------------------------------------------------------------------------------------------------------------

@scenario(120)
def etcd_away(context, rng, size):
    """etcd stands still for three leases: the data path goes on, nobody exits, a shard joins within 5 s of its return."""
    rig = Rig(context, rng, experts=2)
    load = Load(rig)
    load.settle()
    with load.disturbed("15 s without etcd"):
        rig.etcd.server.signal(signal.SIGSTOP)
        time.sleep(15)
        others_live(rig, set(), "15 s without etcd")
    rig.etcd.server.signal(signal.SIGCONT)
    back = time.monotonic()
    rig.expert(2)
    rig.shards["experts-2"].wait_ready(30)
    rig.wait(experts=3)
    took = METER.since(back, "a shard joins after etcd's return")
    expect(took < 5, f"a shard joined {took:.1f} s after etcd's return; the bar is 5 s")
    end(rig, load, "etcd away for 15 s")
    figures("etcd_away", stall_s=load.worst, join_s=took)
    within(load.worst, 0.5, "etcd away")
    return f"{load.done} streams, stall {load.worst:.3f} s, a shard joined {took:.1f} s after the return"


@scenario(120)
def lead_without_etcd(context, rng, size):
    """A lead loses its way to etcd, its lease runs out, the pool changes: it serves on with the epoch that it knows, and catches up."""
    rig = Rig(context, rng, experts=2, etcd_proxied=("layers-0-0",))
    load = Load(rig)
    load.settle()
    way = rig.etcd_ways["layers-0-0"]
    with load.disturbed("a change while a lead had no way to etcd") as fault:
        way.refuse = True
        way.reset_all()
        rig.wait(layers=0, within=30)
        epoch = rig.status()["epoch"]
        rig.expert(2).wait_ready(30)
        rig.wait(experts=3)
        while rig.status()["epoch"] == epoch:
            expect(time.monotonic() - fault.began < 60, f"the epoch is {epoch} still, with an expert shard more")
            time.sleep(0.1)
        time.sleep(3)
        load.settle()
    way.refuse = False
    rig.wait(experts=3, layers=1)
    load.settle()
    end(rig, load, "a lead without etcd")
    figures("lead_without_etcd", stall_s=load.worst)
    within(load.worst, 0.5, "a change while a lead had no way to etcd")
    return f"{load.done} streams, stall {load.worst:.3f} s"


def member_keys(rig):
    return sorted(key for key in rig.keys() if "/members/" in key)


def answers(address):
    try:
        return web.get(address, "/health")[0] == 200
    except Fail:
        return False


@scenario(120)
def etcd_empty(context, rng, size):
    """etcd is killed and comes back with an empty folder: nothing fails, members register again within 5 s."""
    rig = Rig(context, rng, experts=2)
    load = Load(rig)
    load.settle()
    before, members = rig.status()["epoch"], member_keys(rig)
    equal(len(members), 4, "members in etcd before it was emptied")
    with load.disturbed("etcd came back empty"):
        old = rig.etcd.server
        argv = list(old.argv)
        old.kill()
        folder = argv[argv.index("--data-dir") + 1]
        shutil.rmtree(folder, ignore_errors=True)
        rig.etcd.server = context.program(*argv)
        expect(until(lambda: answers(rig.etcd.address), 20), "etcd with an empty folder did not get healthy within 20 s")
        back = time.monotonic()
        registered = until(lambda: member_keys(rig) == members, 20)
        took = METER.since(back, "members register again")
        expect(registered, f"members in etcd 20 s after it came back empty: {member_keys(rig)}, before that {members}")
        expect(took < 5, f"members were registered again {took:.1f} s after etcd was back; the bar is 5 s")
        time.sleep(max(0.0, back + 6 - time.monotonic()))    # who is not registered is shown for 5 s
        rig.wait(experts=2, layers=1, within=10)
        others_live(rig, set(), "etcd came back empty")
        expect(rig.status()["epoch"] >= before, f"epoch: {before} before, {rig.status()['epoch']} after etcd was emptied")
        rig.expert(2).wait_ready(30)
        rig.wait(experts=3)
    end(rig, load, "etcd emptied")
    figures("etcd_empty", stall_s=load.worst, register_s=took)
    within(load.worst, 0.5, "etcd emptied")
    return f"{load.done} streams, stall {load.worst:.3f} s, registered again after {took:.1f} s"


@scenario(180)
def etcd_member_lost(context, rng, size):
    """One of three etcd members is killed, whichever it is: nothing fails, a shard joins and leaves meanwhile."""
    trio = EtcdTrio(context)
    rig = Rig(context, rng, experts=2, etcd=trio)
    load = Load(rig)
    load.settle()
    joined = []
    with load.disturbed("etcd members lost"):
        for victim in range(3):
            trio.kill(victim)
            begin = time.monotonic()
            rig.expert(2).wait_ready(30)
            rig.wait(experts=3)
            joined.append(time.monotonic() - begin)
            rig.shards["experts-2"].signal(signal.SIGTERM)
            equal(rig.shards["experts-2"].wait(40), 0, "exit code after SIGTERM")
            rig.wait(experts=2)
            others_live(rig, {"experts-2"}, f"etcd member {victim} lost")
            trio.start(victim)
            trio.wait()
            load.check(f"etcd member {victim} lost")
    end(rig, load, "an etcd member lost")
    figures("etcd_member_lost", stall_s=load.worst, join_s=max(joined))
    within(load.worst, 0.5, "an etcd member lost")
    return f"{load.done} streams, stall {load.worst:.3f} s, joins took up to {max(joined):.1f} s"


@scenario(120)
def other_model(context, rng, size):
    """An expert shard with another model registers: it is given nothing, says why, and nothing is lost."""
    rig = Rig(context, rng, experts=2)
    load = Load(rig)
    load.settle()
    others = [m for m in context.models if m.path != rig.model.path and "experts" in (m.path / "config.json").read_text()]
    if not others:
        raise Skip("one model in the data folders")
    epoch = rig.status()["epoch"]
    stranger = context.program(rig.weft, "shard", "--role", "experts", "--id", "stranger", "--cluster", rig.name, "--etcd", rig.etcd.address,
                               "--model", others[0].path, "--listen", "127.0.0.1:0")
    expect(until(lambda: any("another model" in line for p in (rig.router, stranger, rig.shards["layers-0-0"]) for line in list(p.stderr)), 30),
           "nobody says that a shard with another model has registered")
    told = {m["id"]: m for m in rig.status()["members"]}
    expect(told.get("stranger", {}).get("experts", 0) == 0, f"a shard with another model was given experts: {told.get('stranger')}")
    equal(rig.status()["epoch"], epoch, "epoch after a stranger registered")
    if stranger.alive:
        stranger.signal(signal.SIGTERM)
        stranger.wait(40)
    end(rig, load, "another model")
    return f"{load.done} streams"


@scenario(240)
def with_certificates(context, rng, size):
    """TLS between all processes and to etcd: same tokens, a shard that goes comes back, a member of another authority disturbs nobody."""
    ours, others = Authority(context, "ours"), Authority(context, "others")
    etcd = EtcdTls(context, ours)
    rig = Rig(context, rng, experts=3, stages=2, replicas=2, streams=4, etcd=etcd, env={**ours.of_etcd(), **ours.of_links()})
    load = Load(rig)
    load.settle()
    rig.shards["experts-1"].kill()
    rig.wait(experts=2)
    rig.expert(1).wait_ready(30)
    rig.wait(experts=3)
    for shard in rig.shards.values():
        code = None
        try:
            code = web.get(shard.addresses["link"], "/")[0]
        except Fail:
            pass
        expect(code is None, f"a link port that asks for certificates answered in the clear: {code}")
    stranger = rig.expert(7, env=others.of_links())
    stranger.wait_ready(30)
    load.settle()
    others_live(rig, {"experts-7"}, "a member of another authority")
    stranger.stop()
    rig.wait(experts=3)
    end(rig, load, "certificates everywhere")
    return f"{load.done} streams"


@scenario(60)
def no_room_for_an_expert(context, rng, size):
    """An expert shard whose --expert-bytes hold not one expert ends at once with 4, and names the flag."""
    rig = Rig(context, rng, experts=1)
    small = rig.shard("small", "--role", "experts", "--expert-bytes", "1K")
    equal(small.wait(20), 4, "exit code of a shard that can hold no expert")
    expect(any("--expert-bytes: 1024 bytes" in line for line in small.stderr), f"it does not name the flag: {list(small.stderr)[-1:]}")
    del rig.shards["small"]
    rig.stop()
    return "1024 bytes are refused"


@scenario(60)
def all_at_once(context, rng, size):
    """SIGTERM to every process, etcd with them: all end with 0 within 12 s, though nobody is left to take experts away."""
    rig = Rig(context, rng, experts=2, stages=2)
    Load(rig).stop("before SIGTERM")
    begin = time.monotonic()
    for process in (rig.etcd.server, rig.router, *rig.shards.values()):
        process.signal(signal.SIGTERM)
    for name, process in {"router": rig.router, **rig.shards}.items():
        equal(process.wait(30), 0, f"exit code of {name}")
    took = METER.since(begin, "the end of all")
    rig.served.close()
    figures("all_at_once", end_s=took)
    expect(took < 12, f"the last process ended after {took:.1f} s; the bar is 12 s")
    return f"ended after {took:.1f} s"


@scenario(120)
def saturated(context, rng, size):
    """Every core busy and more requests than run at once, for 15 s: /healthz never fails, no member is taken for dead."""
    rig = Rig(context, rng, experts=2, streams=16, flags=("--max-seqs", "4"))
    load = Load(rig)
    load.settle()
    polls = []

    def window():
        until = time.monotonic() + (15 if size == "short" else 60)
        while time.monotonic() < until:
            equal(web.get(rig.router.http, "/healthz")[0], 200, "/healthz of a busy router")
            polls.append(1)
            time.sleep(0.1)

    changed = same_epoch(rig, window, "while every core was busy")
    expect(changed is None, changed)
    end(rig, load, "a busy time")
    return f"{len(polls)} polls, {load.done} streams"


# -- the network ------------------------------------------------------------------------------------------------------

@scenario(240)
def cut_links(context, rng, size):
    """Links to expert shards are reset at random bytes, handed over byte by byte, and get a bit flipped: nothing is lost."""
    rig = Rig(context, rng, experts=3, replicas=2, proxied=("experts-0", "experts-1", "experts-2"))
    load = Load(rig)
    load.settle()
    rounds = 12 if size == "short" else 150
    with load.disturbed("links cut"):
        for i in range(rounds):
            proxy = rig.proxies[rng.choice(sorted(rig.proxies))]
            kind = ("cut", "flip", "reset", "small")[i % 4]
            if kind == "cut":
                proxy.cut_after = rng.randrange(1, 40000)
            elif kind == "flip":
                proxy.flip_after = max((p.passed for p in proxy._pipes), default=0) + rng.randrange(1, 40000)
            elif kind == "reset":
                proxy.reset_all()
            else:
                proxy.piece = 1
            time.sleep(0.5)
            proxy.piece = 1 << 20
            load.check(f"after {kind}")
            rig.wait(experts=3)
    done = sum(p.cuts for p in rig.proxies.values()), sum(p.flips for p in rig.proxies.values())
    end(rig, load, "links cut")
    figures("cut_links", cuts=done[0], flips=done[1], stall_s=load.worst)
    return f"{done[0]} cuts, {done[1]} flips, {load.done} streams, stall {load.worst:.2f} s"


@scenario(240)
def silent_network(context, rng, size):
    """A link on which nothing passes any more, one way or both, without a FIN: found in 1.5 s, nothing is lost."""
    rig = Rig(context, rng, experts=3, replicas=2, proxied=("experts-0", "experts-1", "experts-2"))
    load = Load(rig)
    load.settle()
    for ways in (("up", "down"), ("up",), ("down",)) * (1 if size == "short" else 8):
        proxy = rig.proxies[rng.choice(sorted(rig.proxies))]
        with load.disturbed(f"nothing passes {ways}"):
            proxy.blocked = set(ways)
            time.sleep(4)
        proxy.blocked = set()
        rig.wait(experts=3, within=15)
    end(rig, load, "a silent network")
    figures("silent_network", stall_s=load.worst)
    within(load.worst, 1.5, "a silent network")
    return f"{load.done} streams, stall {load.worst:.2f} s"


@scenario(120)
def slow_network(context, rng, size):
    """50 ms of delay on the link of one expert shard: nobody is taken for dead, nothing is lost."""
    rig = Rig(context, rng, experts=2, replicas=1, proxied=("experts-1",), streams=4)
    load = Load(rig)
    load.settle()
    rig.proxies["experts-1"].delay = 0.05
    changed = same_epoch(rig, lambda: time.sleep(6), "while a link was slow (a false death)")
    expect(changed is None, changed)
    rig.proxies["experts-1"].delay = 0.0
    load.settle()
    end(rig, load, "a slow network")
    return f"{load.done} streams, epoch unchanged"


# -- partitions, in namespaces ----------------------------------------------------------------------------------------

def in_namespaces(function):
    function.namespaces = True
    return function


@scenario(300)
@in_namespaces
def partitions(context, rng, size):
    """Router, layer shard, expert shard and etcd are cut off from each other, one way too: no wrong token, heals in 3 s."""
    rig = NetRig(context, rng, experts=3, replicas=2)
    load = Load(rig)
    load.settle()
    faults, healing = {}, {}
    for a, b, both in (("layers-0-0", "experts-1", True), ("layers-0-0", "experts-0", False), ("experts-2", "layers-0-0", False),
                       ("router", "layers-0-0", True), ("layers-0-0", "router", False),
                       ("layers-0-0", "etcd", True), ("experts-0", "etcd", True), ("router", "etcd", True)):
        what = f"{a} {'and' if both else 'deaf to'} {b}"
        with load.disturbed(what) as fault:
            rig.cut(a, b) if both else rig.deaf(a, b)
            time.sleep(4)
            rig.heal()
            healed = time.monotonic()
            rig.wait(experts=3, layers=1, within=30)
            faults[what], healing[what] = fault, round(METER.since(healed, f"{what}, healed"), 2)
            load.settle()
    end(rig, load, "partitions")
    told = {what: (round(fault.stall, 2), healing[what]) for what, fault in faults.items()}
    figures("partitions", stall_s_and_heal_s=told)
    for what, (stall, heal) in told.items():
        within(stall, 4 + 3 if "router" in what else 1.5, what)
        expect(heal <= 3, f"{what}: healed after {heal:.1f} s; the bar is 3 s")
    return f"{load.done} streams; stall and time to heal: {told}"


@scenario(120)
@in_namespaces
def loss(context, rng, size):
    """1 % and 10 % of packets to one expert shard are lost: nothing fails."""
    rig = NetRig(context, rng, experts=2, replicas=1)
    load = Load(rig)
    load.settle()
    for percent in (1, 10):
        rig.lossy("experts-1", percent)
        time.sleep(5)
        rig.heal()
        load.settle()
        load.check(f"{percent} % lost")
    end(rig, load, "lost packets")
    return f"{load.done} streams"

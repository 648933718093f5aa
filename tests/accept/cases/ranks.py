"""Ranks that share each layer (--tensor-parallel): the same numbers within the same bounds, and for a given degree the same bits."""
import json

from lib.case import Skip, case, equal, expect

from cases.invariance import requests, same, solo, together
from cases.numerics import compare, longest

EMULATED = {"WEFT_SIMT_DEVICES": "4"}    # where the binary computes on the emulator


def degree(number):
    return "--tensor-parallel", str(number)


def divides(model, number):
    """Whether all heads and widths of the model's own layers can be cut by it."""
    config = model.config.get("text_config", model.config)
    dense = config["num_hidden_layers"] if not config.get("n_routed_experts") else config.get("first_k_dense_replace", 0)
    parts = [config["num_attention_heads"]]
    if "swa_num_attention_heads" in config and "sliding_attention" in config.get("layer_types", ["sliding_attention"]):
        parts.append(config["swa_num_attention_heads"])
    if dense:
        parts.append(config["intermediate_size"])
    if config.get("n_routed_experts"):
        parts.append(config["moe_intermediate_size"])
        parts.append(config["moe_intermediate_size"] * (config.get("n_shared_experts") or 0))
    return all(part % number == 0 for part in parts)


def devices_or_skip(context, model, number):
    """`weft check` says whether serve would start; too few devices of the machine skip the case."""
    done = context.run("check", "--model", model.path, "--json", *degree(number), env=EMULATED, timeout=60)
    if done.code == 4 and " device" in done.err:
        raise Skip(done.lines[-1])
    return done


@case("ranks.goldens", limit=240, models="golden")
def goldens(context, model):
    """Profile exact by 2 and 4 ranks: the goldens within the bounds of one, prefilled and token by token; what does not divide is refused by name."""
    longest(model)
    told, worst = [], 0.0
    for number in (2, 4):
        done = devices_or_skip(context, model, number)
        if not divides(model, number):
            equal(done.code, 2, f"exit code of check {' '.join(degree(number))}")
            expect(done.lines[-1].startswith(f"weft: --tensor-parallel {number}: "), f"the refusal does not name the flag: {done.lines[-1]}")
            told.append(f"{number} refused")
            continue
        equal(done.code, 0, f"exit code of check {' '.join(degree(number))}, which said {done.err[-200:]}")
        for prompt in model.prompts:
            _, logits = context.eval(model, prompt.ids, *degree(number), env=EMULATED)
            worst = max(worst, compare(model, prompt, logits, f"eval by {number} ranks"))
        prompt = longest(model)
        _, logits = context.eval(model, prompt.ids, *degree(number), "--decode-from", len(prompt.ids) // 2, "--page-tokens", 4, env=EMULATED)
        worst = max(worst, compare(model, prompt, logits, f"eval by {number} ranks, token by token"))
        told.append(str(number))
    return f"{', '.join(told)}: rel L2 {worst:.1e}"


@case("ranks.eval", limit=240, models="golden")
def evaluation(context, model):
    """Two ranks write bytes that are not those of one, and the same for every chunk size, page size, decode start and number of threads, in both profiles."""
    if not model.prompts or not divides(model, 2):
        raise Skip("no golden prompts in this folder, or nothing that two can share")
    devices_or_skip(context, model, 2)
    ids = max((p.ids for p in model.prompts if len(p.ids) <= 64), key=len)
    settings = [["--chunk-tokens", 1], ["--chunk-tokens", 16, "--page-tokens", 1], ["--decode-from", len(ids) // 2], ["--threads", 1],
                ["--chunk-tokens", 5, "--page-tokens", 4, "--decode-from", len(ids) // 2, "--threads", 4]]
    for profile in ("exact", "bf16"):
        _, wanted = context.eval(model, ids, *degree(2), profile=profile, env=EMULATED)
        _, alone = context.eval(model, ids, profile=profile, env=EMULATED)
        expect(wanted.tobytes() != alone.tobytes(), f"{profile}: two ranks gave the bytes of one, as if they had not shared anything")
        for flags in settings:
            _, seen = context.eval(model, ids, *degree(2), *flags, profile=profile, env=EMULATED)
            expect(seen.tobytes() == wanted.tobytes(), f"{profile}, {' '.join(map(str, flags))}: expected the bytes of the plain run by two "
                                                       f"ranks, largest difference {abs(seen - wanted).max():.1e}")
    return f"{2 * len(settings)} runs of {len(ids)} tokens"


def company_case(context, model, todo, profile):
    """As invariance.company, by two ranks."""
    devices_or_skip(context, model, 2)
    served = context.serve(model, "--profile", profile, *degree(2), env=EMULATED)
    alone = solo(served, todo)
    for turn in range(2):
        for i, (seen, wanted) in enumerate(zip(together(served, todo), alone)):
            same(seen, wanted, f"request {i} among {len(todo) - 1} others, turn {turn}")
    served.wait_idle("after the runs")
    served.stop()
    return f"{sum(len(a[0]) for a in alone)} tokens"


@case("ranks.company", limit=240)
def company(context):
    """Each of 16 requests alone, then all together, twice, by two ranks: ids and logprob bits equal (profile exact)."""
    model = context.model()
    return company_case(context, model, requests(context, model), "exact")


@case("ranks.company_bf16", limit=240)
def company_bf16(context):
    """The same in the default profile."""
    model = context.model()
    return company_case(context, model, requests(context, model), "bf16")


@case("ranks.few", limit=240)
def few(context):
    """The same with a few short requests to a small model: what a machine without devices can emulate."""
    model = next((m for m in context.goldens if divides(m, 2)), None)
    if model is None:
        raise Skip("no small checkpoint that two can share")
    todo = [dict(request, ids=request["ids"][:4 + 5 * i], max_tokens=6) for i, request in enumerate(requests(context, model, 5))]
    return company_case(context, model, todo, "bf16")


@case("ranks.plan", limit=60)
def plan(context):
    """check counts KV pages once for each rank of a CPU, and weights that are not cut as often as they are there."""
    model = context.model()
    done = devices_or_skip(context, model, 2)
    one = json.loads(context.run("check", "--model", model.path, "--json", timeout=60).out)["memory"]
    two = json.loads(done.out)["memory"]
    equal((one["ranks"], two["ranks"]), (1, 2), "ranks that check tells")
    equal(two["kv"], one["kv"], "KV bytes of a rank: full contexts fit either way")
    expect(one["weights"] < two["weights"] < 2 * one["weights"], f"weights of two ranks: {two['weights']} bytes, of one {one['weights']}")
    expect(two["peak"] > one["peak"] + one["kv"] // 2, f"peak of two ranks: {two['peak']} bytes, of one {one['peak']}, with {one['kv']} of KV each")
    return f"weights {two['weights'] / one['weights']:.2f} times"


@case("ranks.refused", limit=60)
def refused(context):
    """A degree out of range, and one with stages or expert shards in the same process: exit 2, one line that names the flag."""
    model = context.small_model()
    for flags in (degree(0), degree(9), (*degree(2), "--stages", "2"), (*degree(2), "--expert-shards", "2")):
        done = context.run("serve", "--model", model.path, "--listen", "127.0.0.1:0", "--http", "off", *flags)
        equal(done.code, 2, f"exit code of serve {' '.join(flags)}")
        expect(len(done.lines) == 1 and "--tensor-parallel" in done.lines[0], f"serve {' '.join(flags)} said {done.lines}")
    done = context.run("shard", "--role", "experts", "--cluster", "x", "--etcd", "127.0.0.1:1", "--model", model.path, *degree(2))
    equal(done.code, 2, "exit code of an expert shard of two ranks")
    expect("--tensor-parallel has no meaning with --role experts" in done.err, f"an expert shard of two ranks said {done.lines}")

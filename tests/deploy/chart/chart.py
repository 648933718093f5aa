"""The chart deploy/helm/weft: what it renders, and what it refuses."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

HELM = os.environ["HELM"]
ROOT = pathlib.Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy/helm/weft"
MODEL = ["--set", "model.hostPath.path=/m"]
VERSION = "1.36"
# Kinds of others, whose definitions are not Kubernetes' own.
FOREIGN = {"Certificate", "ServiceMonitor", "PrometheusRule", "GRPCRoute", "HTTPRoute", "ScaledObject"}

failed = 0
passed = 0


def check(name, ok, why=""):
    global failed, passed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {name}: {why}")


def helm(*args):
    return subprocess.run([HELM, *args], capture_output=True, text=True, timeout=120)


def render(*args):
    done = helm("template", "r", str(CHART), "--namespace", "prod", *args)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def pod_of(o):
    if o["kind"] == "Pod":
        return o["spec"]
    return o["spec"]["template"]["spec"] if o["kind"] in ("Deployment", "StatefulSet") else None


def validate(name, objects):
    for o in objects:
        label = f"{name}: {o['kind']}/{o['metadata']['name']}"
        if o["kind"] in FOREIGN:
            check(label, "spec" in o, "no spec")
            continue
        try:
            kubernetes_validate.validate(o, VERSION, strict=True)
            check(label, True)
        except kubernetes_validate.ValidationError as e:
            check(label, False, f"{e.path}: {e.message}")


def security(name, objects):
    """What every pod is held to."""
    for o in objects:
        pod = pod_of(o)
        if pod is None:
            continue
        label = f"{name}: {o['kind']}/{o['metadata']['name']}"
        check(f"{label} no token", pod.get("automountServiceAccountToken") is False)
        check(f"{label} non-root", pod["securityContext"].get("runAsNonRoot") is True)
        check(f"{label} seccomp", pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault")
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            check(f"{label} {key}", not pod.get(key))
        for c in pod["containers"] + pod.get("initContainers", []):
            s = c["securityContext"]
            check(f"{label} read-only root", s["readOnlyRootFilesystem"] is True)
            check(f"{label} no escalation", s["allowPrivilegeEscalation"] is False)
            check(f"{label} drops all", s["capabilities"]["drop"] == ["ALL"])


def drain(name, objects, seconds):
    """One number: notice and the process's own time are within it."""
    seen = 0
    for o in objects:
        if o["kind"] not in ("Deployment", "StatefulSet") or o["metadata"]["name"].endswith("-etcd"):
            continue
        pod = pod_of(o)
        c = pod["containers"][0]
        own = int(next(a for a in c["args"] if a.startswith("--drain-seconds=")).split("=")[1])
        notice = c["lifecycle"]["preStop"]["sleep"]["seconds"]
        check(f"{name} drain", notice + own == seconds and pod["terminationGracePeriodSeconds"] > seconds,
              f"{notice} + {own} of {seconds}, grace {pod['terminationGracePeriodSeconds']}")
        hung = c["livenessProbe"]["terminationGracePeriodSeconds"]
        check(f"{name} ends what hangs after its notice, and soon", hung == notice + 5, f"{hung} s, notice {notice}")
        seen += 1
    check(f"{name} drains", seen >= 3, f"{seen} workloads")


def selectors(name, objects):
    """Each Service, budget and policy selects the pods of some workload."""
    pods = []
    for o in objects:
        if o["kind"] in ("Deployment", "StatefulSet"):
            labels = o["spec"]["template"]["metadata"]["labels"]
            pods.append(labels)
            wanted = o["spec"]["selector"]["matchLabels"]
            check(f"{name}: {o['metadata']['name']} selects its own", wanted.items() <= labels.items())
    for o in objects:
        spec = o.get("spec", {})
        if o["kind"] == "Service":
            wanted = spec["selector"]
        elif o["kind"] == "PodDisruptionBudget":
            wanted = spec["selector"]["matchLabels"]
        elif o["kind"] == "NetworkPolicy":
            wanted = spec["podSelector"]["matchLabels"]
        else:
            continue
        check(f"{name}: {o['kind']}/{o['metadata']['name']} selects", any(wanted.items() <= p.items() for p in pods))


def find(objects, kind, name):
    return next((o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name), None)


def args_of(o):
    return pod_of(o)["containers"][0]["args"]


REFUSED = [
    ("unknown key", ["--set", "experts.replica=4"], "replica"),
    ("unknown top key", ["--set", "expert.replicas=4"], "expert"),
    ("wrong type", ["--set", "experts.replicas=many"], "replicas"),
    ("below the range", ["--set", "experts.replicas=0"], "replicas"),
    ("a size that is none", ["--set", "layers.kvBytes=4GB"], "kvBytes"),
    ("a digest that is none", ["--set", "image.digest=sha256:12"], "digest"),
    ("an endpoint without port", ["--set", "etcd.endpoints={etcd}", "--set", "etcd.install=false"], "endpoints"),
    ("a drain that is too short", ["--set", "drain.seconds=1"], "drain"),
    ("two etcds", ["--set", "etcd.endpoints={e:2379}"], "etcd.endpoints is set and etcd.install is true"),
    ("your etcd's secret for ours", ["--set", "etcd.tlsSecret=x"], "of an etcd of yours"),
    ("no etcd", ["--set", "etcd.install=false"], "etcd.endpoints is empty"),
    ("an even etcd", ["--set", "etcd.replicas=2"], "an odd number"),
    ("two models", ["--set", "model.pvc.claimName=x"], "exactly one of"),
    ("a download without image", ["--set", "model.hostPath.path=", "--set", "model.download.enabled=true"],
     "model.download.image is empty"),
    ("no secret", ["--set", "tls.mode=secret"], "tls.existingSecret is empty"),
    ("no issuer", ["--set", "tls.mode=certManager"], "issuerRef.name is empty"),
    ("fewer shards than owners", ["--set", "router.expertReplicas=3"], "experts.replicas 2 is below router.expertReplicas 3"),
    ("autoscaling upside down", ["--set", "experts.autoscaling.enabled=true,experts.autoscaling.maxReplicas=1"],
     "maxReplicas 1 is below minReplicas 2"),
    ("fewer than owners at its least", ["--set", "experts.autoscaling.enabled=true,router.expertReplicas=3"],
     "experts.autoscaling.minReplicas 2 is below router.expertReplicas 3"),
    ("keda without triggers", ["--set", "experts.autoscaling.enabled=true,experts.autoscaling.type=keda"], "triggers is empty"),
    ("keda with metrics of hpa", ["--set-json", 'experts.autoscaling={"enabled":true,"type":"keda","triggers":[{}],"metrics":[{}]}'],
     "experts.autoscaling.metrics are of type hpa"),
    ("hpa with triggers of keda", ["--set-json", 'experts.autoscaling={"enabled":true,"triggers":[{}]}'],
     "experts.autoscaling.triggers are of type keda"),
    ("a device scaled by CPU", ["--set", "experts.autoscaling.enabled=true,experts.gpu.count=1"], "CPU time says nothing"),
    ("CPU without a request", ["--set", "experts.autoscaling.enabled=true", "--set-json", 'experts.resources={"requests":{"cpu":null}}'],
     "experts.resources.requests.cpu is not set"),
    ("layers by load", ["--set", "layers.autoscaling.enabled=true"], "autoscaling"),
    ("devices for the CPU", ["--set", "layers.backend=cpu,layers.gpu.count=1"], "devices would be held"),
    ("a device more than ranks", ["--set", "layers.gpu.count=2"], "layers.gpu.count is 2 and layers.tensorParallel is 1"),
    ("two devices for experts", ["--set", "experts.gpu.count=2"], "an expert shard computes on one device"),
    ("no device for CUDA", ["--set", "experts.backend=cuda"], "no device is asked for"),
    ("a route without gateway", ["--set", "gateway.grpcRoute.enabled=true"], "gateway.grpcRoute.parentRefs is empty"),
    ("a budget above all", ["--set", "experts.pdb.minAvailable=3,experts.pdb.maxUnavailable=null"], "minAvailable 3 of 2 pods"),
    ("two budgets", ["--set", "experts.pdb.minAvailable=1"], "one of minAvailable and maxUnavailable"),
]


# Values that no example has: name, flags.
VARIANTS = [
    ("download", ["--set-json", 'model.download={"enabled":true,"image":"fetch:1","command":["fetch"],"args":["$(MODEL_DIR)"],'
                  '"env":[{"name":"A","value":"b"}],"envFrom":[{"secretRef":{"name":"s"}}],"sizeLimit":"600Gi","resources":{"limits":{"cpu":"1"}}}']),
    ("claim", ["--set", "model.pvc.claimName=c,model.pvc.subPath=a/b,model.name=m"]),
    ("plain", [*MODEL, "--set", "tls.mode=off,networkPolicy.enabled=false,serviceAccount.create=false,router.pdb.enabled=false"]),
    ("secrets", [*MODEL, "--set", "tls.mode=secret,tls.existingSecret=s,auth.existingSecret=k,image.pullSecrets={p}"]),
    ("an etcd of yours", [*MODEL, "--set", "etcd.install=false,etcd.endpoints={a:2379,b:2380},etcd.tlsSecret=e,etcd.userSecret=u"]),
    ("the etcd here", [*MODEL, "--set", "etcd.replicas=5,etcd.storage.className=fast,etcd.priorityClassName=high,etcd.nodeSelector.a=b"]),
    ("images", [*MODEL, "--set", "image.registry=r.example.com/x,nameOverride=n,clusterName=c,image.digest=sha256:" + 64 * "a"]),
    # As YAML reads them: true, 1, false, null, 1000, 31.
    ("names that look like values", ["--set-string", "fullnameOverride=y,nameOverride=1,serviceAccount.name=no,experts.priorityClassName=null,"
                                     "auth.existingSecret=1e3,model.pvc.claimName=0x1f,model.pvc.subPath=1,etcd.storage.className=on,"
                                     "image.pullSecrets={off},experts.schedulerName=on,experts.runtimeClassName=yes,tls.mode=secret,"
                                     "tls.existingSecret=1_0,gateway.ingress.className=2",
                                     "--set", "gateway.ingress.enabled=true,experts.autoscaling.enabled=true"]),
    ("gateways", [*MODEL, "--set", "tls.public=false", "--set-json",
                  'gateway={"grpcRoute":{"enabled":true,"parentRefs":[{"name":"g"}]},"httpRoute":{"enabled":true,"parentRefs":[{"name":"g"}]},'
                  '"ingress":{"enabled":true,"className":"c","host":"h.example.com","tlsSecret":"t","annotations":{"a":"b"}}}']),
    ("both scalers", [*MODEL, "--set", "router.autoscaling.enabled=true,experts.autoscaling.enabled=true"]),
    ("an object more", [*MODEL, "--set-json", 'extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{{ .Release.Name }}-x"}}]']),
]
# The same sub-keys, for each role.
ROLE = {
    "gpu": {"count": 1}, "rdma": {"enabled": True}, "updateStrategy": {"type": "RollingUpdate"},
    "pdb": {"minAvailable": "50%", "maxUnavailable": None},
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high", "schedulerName": "other", "runtimeClassName": "nvidia", "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"}, "podSecurityContext": {"supplementalGroups": [44]}, "securityContext": {"privileged": False},
    "extraArgs": ["--log-level=debug"], "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "v", "emptyDir": {}}], "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
}


def variants():
    for name, args in [*VARIANTS, *((f"{r} in full", [*MODEL, "--set-json", f"{r}={json.dumps(ROLE)}"]) for r in ("router", "layers", "experts"))]:
        objects = render(*args)
        validate(name, objects)
        security(name, objects)
        selectors(name, objects)
        drain(name, objects, 60)
    for role in ("router", "layers", "experts"):
        objects = render(*MODEL, "--set-json", f"{role}={json.dumps(ROLE)}")
        own = [pod_of(o) for o in objects if pod_of(o) and o["metadata"]["labels"]["app.kubernetes.io/component"] == role]
        text = json.dumps(own)
        for word in ("nvidia.com/gpu", "rdma/hca", "rack", "Exists", "nodeAffinity", "high", "other", "supplementalGroups", "privileged",
                     "--log-level=debug", '"mountPath": "/v"', '"memory": "1Gi"'):
            check(f"{role} has {word}", len(own) == 1 and word in text)


def notes():
    """Rendered with a server only, so here as an object of a copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "weft"
        shutil.copytree(CHART, copy)
        text = (copy / "templates/NOTES.txt").read_text()
        (copy / "templates/notes.yaml").write_text('{{ define "notes" }}' + text + '{{ end }}\nkind: Notes\ntext: {{ include "notes" . | toJson }}\n')

        def told(*args):
            done = helm("template", "r", str(copy), "--namespace", "prod", "--show-only", "templates/notes.yaml", *MODEL, *args)
            return yaml.safe_load(done.stdout)["text"] if done.returncode == 0 else done.stderr

        plain = told()
        for command in ("helm test r -n prod", "kubectl -n prod exec deploy/r-weft-router -- weft status --addr localhost:7070 --tls-ca /tls/ca.crt",
                        "kubectl -n prod scale statefulset r-weft-experts --replicas=3"):
            check(f"notes: {command}", command in plain, plain)
        check("notes without keys", "No API keys" in plain and "--api-key-file" in told("--set", "auth.existingSecret=s"))
        check("notes in plain text", "WARNING: tls.mode is off" in told("--set", "tls.mode=off") and "WARNING" not in plain)
        check("notes with a scaler", "get hpa r-weft-experts" in told("--set", "experts.autoscaling.enabled=true"))
        keda = told("--set-json", 'experts.autoscaling={"enabled":true,"type":"keda","triggers":[{"type":"cpu"}]}')
        check("notes with keda", "get hpa keda-hpa-r-weft-experts" in keda and "2 to 16 expert shards" in keda, keda)


def refusals():
    check("no model is refused", "exactly one of" in helm("template", "r", str(CHART)).stderr, "rendered")
    for name, args, text in REFUSED:
        done = helm("template", "r", str(CHART), *MODEL, *args)
        check(f"refused: {name}", done.returncode != 0 and text in done.stderr, done.stderr[-300:] or "rendered")


def shapes():
    o = render(*MODEL, "--set", "layers.replicas=2,layers.stages=3,experts.replicas=5")
    sets = sorted(x["metadata"]["name"] for x in o if x["kind"] == "StatefulSet")
    check("a set for each stage", [s for s in sets if "-layers-" in s] == [f"r-weft-layers-s{n}" for n in range(3)], str(sets))
    one = find(o, "StatefulSet", "r-weft-layers-s2")
    check("its pods are groups", one["spec"]["replicas"] == 2 and one["spec"]["podManagementPolicy"] == "Parallel")
    check("its flags", {"--group=$(GROUP)", "--stage=2", "--stages=3"} <= set(args_of(one)), str(args_of(one)))
    group = [e for e in pod_of(one)["containers"][0]["env"] if e["name"] == "GROUP"]
    check("its group", [e["valueFrom"]["fieldRef"]["fieldPath"] for e in group] == ["metadata.labels['apps.kubernetes.io/pod-index']"], str(group))
    experts = find(o, "StatefulSet", "r-weft-experts")
    check("experts are scaled by their replicas", experts["spec"]["replicas"] == 5)
    check("experts start all at once", experts["spec"]["podManagementPolicy"] == "Parallel")
    headless = find(o, "Service", "r-weft-experts")["spec"]
    check("headless, before ready", headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"])
    scaled = render(*MODEL, "--set", "experts.autoscaling.enabled=true")
    check("a scaler's count is its own", "replicas" not in find(scaled, "StatefulSet", "r-weft-experts")["spec"])
    hpa = find(scaled, "HorizontalPodAutoscaler", "r-weft-experts")["spec"]["scaleTargetRef"]
    check("the scaler's target", hpa["kind"] == "StatefulSet" and hpa["name"] == "r-weft-experts")
    keda = render(*MODEL, "--set-json",
                  'experts.autoscaling={"enabled":true,"type":"keda","triggers":[{"type":"cpu"}],"behavior":{"scaleDown":{"selectPolicy":"Min"}}}')
    spec = find(keda, "ScaledObject", "r-weft-experts")["spec"]
    check("keda", spec["scaleTargetRef"]["kind"] == "StatefulSet" and spec["triggers"] == [{"type": "cpu"}] and spec["minReplicaCount"] == 2
          and spec["advanced"] == {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"selectPolicy": "Min"}}}}, str(spec))
    check("keda has no second scaler", find(keda, "HorizontalPodAutoscaler", "r-weft-experts") is None)
    ranks = pod_of(find(render(*MODEL, "--set", "layers.tensorParallel=4,layers.gpu.count=4"), "StatefulSet", "r-weft-layers-s0"))["containers"][0]
    check("ranks", "--tensor-parallel=4" in ranks["args"] and ranks["resources"]["limits"]["nvidia.com/gpu"] == 4, str(ranks))
    gpu = render(*MODEL, "--set", "experts.gpu.count=1,experts.rdma.enabled=true")
    c = pod_of(find(gpu, "StatefulSet", "r-weft-experts"))["containers"][0]
    check("devices", c["resources"]["limits"] == {"nvidia.com/gpu": 1, "rdma/hca": 1}, str(c["resources"]))
    check("pinned pages", c["securityContext"]["capabilities"].get("add") == ["IPC_LOCK"])


def routes():
    o = render(*MODEL, "--set-json", 'gateway={"grpcRoute":{"enabled":true,"parentRefs":[{"name":"g"}]},"httpRoute":{"enabled":true,"parentRefs":[{"name":"g"}]}}')
    for kind, port in (("GRPCRoute", 7070), ("HTTPRoute", 7080)):
        rule, = find(o, kind, "r-weft")["spec"]["rules"]
        check(f"{kind} leads to the router", rule["backendRefs"] == [{"name": "r-weft-router", "port": port}], str(rule))
        paths = {m["path"]["value"] for m in rule.get("matches", [])}
        check(f"{kind} tells nobody of metrics", paths == ({"/v1", "/tokenize", "/detokenize"} if kind == "HTTPRoute" else set()), str(rule))


def certificates():
    o = render(*MODEL)
    router = find(o, "Deployment", "r-weft-router")
    check("TLS unless told otherwise", "--tls-cert=/tls/tls.crt" in args_of(router) and "--link-ca=/tls/ca.crt" in args_of(router))
    check("etcd, too", "--client-cert-auth" in args_of(find(o, "StatefulSet", "r-weft-etcd")))
    check("a secret of its own", set(find(o, "Secret", "r-weft-tls")["data"]) == {"tls.crt", "tls.key", "ca.crt"})
    protocol = find(o, "Service", "r-weft-router")["spec"]["ports"][0]["appProtocol"]
    check("gateways are told of TLS", protocol == "https", protocol)
    off = render(*MODEL, "--set", "tls.mode=off")
    protocol = find(off, "Service", "r-weft-router")["spec"]["ports"][0]["appProtocol"]
    check("and of plain text", protocol == "kubernetes.io/h2c", protocol)
    text = json.dumps(off)
    check("off is off", "--tls-" not in text and "--link-" not in text and "/tls/" not in text)
    yours = render(*MODEL, "--set", "etcd.install=false,etcd.endpoints={a:2379,b:2380},etcd.tlsSecret=e")
    args = args_of(find(yours, "StatefulSet", "r-weft-experts"))
    check("etcd of yours", "--etcd=a:2379,b:2380" in args and "--etcd-ca=/etcd-tls/ca.crt" in args, str(args))
    check("and none of ours", find(yours, "StatefulSet", "r-weft-etcd") is None)


def names():
    """What is written in more than one place: flags, metrics, alerts."""
    sources = "\n".join(p.read_text() for p in sorted((ROOT / "node").rglob("*.c")))
    flags = set(re.findall(r'\.name = "([a-z-]+)"', sources))
    check("flags are found", len(flags) > 30, str(flags))
    for values in ([*MODEL], ["--values", str(CHART / "examples/two-groups-16-experts.yaml"), "--set",
                              "layers.kvBytes=1G,layers.maxContext=9,layers.tensorParallel=2,layers.gpu.count=2,experts.expertBytes=1G,model.name=m,etcd.install=false,"
                              "etcd.endpoints={e:1},etcd.tlsSecret=t,etcd.userSecret=u"]):
        for o in render(*values):
            if pod_of(o) is None or o["metadata"]["name"].endswith("-etcd"):
                continue
            told = {re.match(r"--([a-z-]+)", a).group(1) for a in args_of(o) if a.startswith("--")}
            check(f"flags of {o['metadata']['name']}", told <= flags, str(told - flags))

    metrics = set(re.findall(r"\b(weft_[a-z_]+|vllm:[a-z_]+)", sources))
    runbook = (ROOT / "deploy/runbook.md").read_text()
    for path in ("files/alerts.yaml", "files/dashboard.json", "values.yaml", "README.md", "examples/two-groups-16-experts.yaml"):
        used = set(re.findall(r"\b(weft_[a-z_]+|vllm:[a-z_]+)", (CHART / path).read_text()))
        used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
        check(f"metrics of {path}", used <= metrics, str(used - metrics))
    alerts = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"][0]["rules"]
    titles = {title for line in re.findall(r"^### (.+)$", runbook, re.M) for title in line.split(", ")}
    check("alerts", {a["alert"] for a in alerts} == titles, str({a["alert"] for a in alerts} ^ titles))
    for a in alerts:
        anchor = a["annotations"]["runbook"].partition("#")[2]
        anchors = {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^### (.+)$", runbook, re.M)}
        check(f"runbook of {a['alert']}", anchor in anchors, anchor)
    panels = json.loads((CHART / "files/dashboard.json").read_text())["panels"]
    check("panels", len(panels) > 10 and all(p["targets"] for p in panels), str(len(panels)))


def main():
    examples = sorted((CHART / "examples").glob("*.yaml"))
    check("examples", len(examples) >= 3, str(examples))
    for path in examples:
        done = helm("lint", "--strict", str(CHART), "--values", str(path))
        check(f"lint {path.name}", done.returncode == 0, done.stdout[-400:])
        objects = render("--values", str(path))
        text = json.dumps(objects)
        check(f"{path.name} has the image of its backend", ("--backend=cuda" in text) == ("-cuda\"" in text))
        validate(path.name, objects)
        security(path.name, objects)
        selectors(path.name, objects)
        drain(path.name, objects, yaml.safe_load(path.read_text()).get("drain", {}).get("seconds", 60))
    shapes()
    variants()
    notes()
    certificates()
    routes()
    names()
    refusals()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())

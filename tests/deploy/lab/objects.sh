# What is checked of the objects and pods themselves. Sourced by prove.
# shellcheck shell=bash disable=SC2154

# Objects whose kinds are of others (cert-manager, Prometheus, gateways, KEDA)
# have no definition here; the rest goes to the server.
strict() { # WHAT HELM-FLAG...
    local what=$1
    shift
    helm template demo "$CHART" "$@" >"$WORK/objects.yaml"
    python3 - "$WORK/objects.yaml" "$WORK/own.yaml" <<'PYTHON'
import re, sys
texts = [t for t in open(sys.argv[1]).read().split("\n---\n") if re.search("^kind:", t, re.M)]
theirs = [t for t in texts if re.search(r"^apiVersion: (cert-manager|monitoring\.coreos|gateway\.networking|keda)", t, re.M)]
own = [t for t in texts if t not in theirs]
open(sys.argv[2], "w").write("\n---\n".join(own))
names = sorted({re.search(r"^kind: (\w+)", t, re.M).group(1) for t in theirs})
print(f"{len(own)} objects" + (f"; not looked at: {', '.join(names)}" if names else ""))
sys.exit(not own)
PYTHON
    kubectl create --dry-run=server --validate=strict -f "$WORK/own.yaml" \
        >/dev/null || fail "$what"
    ok
}
every_example_is_valid() {
    say 'every object of every example passes a strict dry run on the server'
    local example
    for example in "$CHART"/examples/*.yaml; do
        say "  ${example##*/}: $(strict "$example" --values "$example")"
    done
    say "  the lab's: $(strict values "${values[@]}")"
    say "  autoscaled by CPU: $(strict autoscaling "${values[@]}" \
        --set experts.autoscaling.enabled=true,router.autoscaling.enabled=true)"
    helm template demo "$CHART" "${values[@]}" |
        sed 's/^\( *\)enableServiceLinks:/\1enableServiceLynks:/' >"$WORK/own.yaml"
    refused 'unknown field "spec.template.spec.enableServiceLynks"' \
        kubectl create --dry-run=server --validate=strict -f "$WORK/own.yaml"
}

# As the API says, and as the kernel says of the processes.
pods_have_no_rights() {
    say 'every pod is non-root, read-only, without host namespaces and token'
    kubectl get pods -l app.kubernetes.io/instance=demo -o json >"$WORK/pods.json"
    python3 - "$WORK/pods.json" <<'PYTHON' || fail 'a pod has more rights than it needs'
import json, sys
bad, pods = [], json.load(open(sys.argv[1]))["items"]
roles = {p["metadata"]["labels"]["app.kubernetes.io/component"] for p in pods}
if roles != {"router", "layers", "experts", "etcd", "test"}:
    bad.append(f"pods of {sorted(roles)}")
def check(holds, *what):
    if not holds: bad.append(": ".join(what))
for p in pods:
    s, name = p["spec"], p["metadata"]["name"]
    check(s.get("automountServiceAccountToken") is False, name, "a token is mounted")
    check("serviceAccountToken" not in json.dumps(s["volumes"]), name, "a volume has a token")
    check(not any(s.get(k) for k in ("hostNetwork", "hostPID", "hostIPC")), name, "a host namespace")
    check(s["securityContext"].get("runAsNonRoot") is True, name, "may be root")
    check(s["securityContext"].get("seccompProfile") == {"type": "RuntimeDefault"}, name, "seccomp")
    for c in s["containers"] + s.get("initContainers", []):
        x = c["securityContext"]
        check(x["readOnlyRootFilesystem"] is True, name, c["name"], "the root can be written")
        check(x["allowPrivilegeEscalation"] is False, name, c["name"], "privileges can be gained")
        check(x["capabilities"] == {"drop": ["ALL"]}, name, c["name"], "capabilities")
        check(not x.get("privileged"), name, c["name"], "privileged")
sys.exit("\n".join(bad) or 0)
PYTHON
    ok
    local pod pid role
    for role in router layers experts etcd; do
        for pod in $(names $role); do
            pid=$(pid_of "$pod")
            is "$(awk '/^Uid:/ { print $2, $3 } /^CapEff:|^CapPrm:/ { print $2 }
                /^NoNewPrivs:/ { print $2 }' "/proc/$pid/status" | paste -sd' ')" \
                '65532 65532 0000000000000000 0000000000000000 1' "rights of $pod"
            refused 'Read-only file system' kubectl exec "$pod" -- touch /usr/x
            refused 'No such file' kubectl exec "$pod" -- \
                ls /var/run/secrets/kubernetes.io/serviceaccount
        done
    done
}

# Whether a flow is let through: FROM-POD HOST PORT yes|no. One line for each
# that is otherwise goes to $WORK/flows.
flow() {
    local got=no seconds=10
    [ "$4" = yes ] || seconds=3
    # shellcheck disable=SC2016
    if in_network "$(pid_of "$1")" timeout $seconds \
        bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$2" "$3" 2>/dev/null; then got=yes; fi
    [ "$got" = "$4" ] || echo "$1 to $2 $3: $got, want $4" >>"$WORK/flows"
}
# Each port that is refused to somebody is open to somebody else, in this table.
flows_are_those_listed() {
    say 'NetworkPolicies: the listed flows, and no others'
    grep -q 'no nft' "$KUBELAB_DIR/logs/fakelet.log" &&
        fail 'no nft: policies are not enforced'
    local router layers=$full-layers-s0-0 experts=$full-experts-0 etcd=$full-etcd-0
    router=$(names router | cut -d' ' -f1)
    local router_ip layers_at=$layers.$full-layers experts_at=$experts.$full-experts etcd_at=$etcd.$full-etcd
    router_ip=$(field "pod/$router" .status.podIP)
    : >"$WORK/flows"
    local pids=() from to port wanted n=0
    while read -r from to port wanted; do
        flow "$from" "$to" "$port" "$wanted" &
        pids+=($!)
        n=$((n + 1))
    done <<TABLE
client $full-router 7070 yes
client $router_ip 7070 yes
client $router_ip 7080 yes
client $layers_at 7071 no
client $layers_at 7080 yes
client $experts_at 7071 no
client $experts_at 7080 yes
client $etcd_at 2379 no
client $etcd_at 2380 no
client 10.244.0.1 6443 yes
$router $layers_at 7071 yes
$router $etcd_at 2379 yes
$router $experts_at 7071 no
$router $etcd_at 2380 no
$router 10.244.0.1 6443 no
$layers $experts_at 7071 yes
$layers $etcd_at 2379 yes
$layers $router_ip 7070 no
$layers 10.244.0.1 6443 no
$experts $etcd_at 2379 yes
$experts $layers_at 7071 no
$experts $router_ip 7070 no
$experts 10.244.0.1 6443 no
$etcd $experts_at 7071 no
$etcd $etcd_at 2380 yes
TABLE
    wait "${pids[@]}"
    [ ! -s "$WORK/flows" ] || fail "flows: $(cat "$WORK/flows")"
    say "  $n flows, each as it should be"
    ok
}

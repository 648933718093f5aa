# What the parts of the lab's proof share: checks, waits, and what is asked of
# the cluster. Sourced by prove. A check that fails ends the run.
# shellcheck shell=bash disable=SC2034

full=demo-weft
prompt='It was a dark night'
passed=0
began=$SECONDS

say() { printf '%4ds  %s\n' $((SECONDS - began)) "$*"; }
ok() { passed=$((passed + 1)); }
fail() {
    echo "FAIL lab: $*" >&2
    kubectl get pods -o wide >&2 || true
    kubectl get events --sort-by=.lastTimestamp 2>/dev/null | tail -n 25 >&2
    exit 1
}
is() { # GOT WANTED WHAT
    [ "$1" = "$2" ] || fail "$3: got '$1', want '$2'"
    ok
}
refused() { # PATTERN COMMAND...: fails, and says why
    local pattern=$1 out
    shift
    if out=$("$@" 2>&1); then fail "not refused: $*"; fi
    grep -qE -- "$pattern" <<<"$out" || fail "refused for another reason: $out"
    ok
}
eventually() { # SECONDS COMMAND...: polls, with a deadline
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "never: $*"
        sleep 0.2
    done
    ok
}

# -- of Kubernetes ------------------------------------------------------------

field() { kubectl get "$1" -o "jsonpath={$2}"; } # OBJECT PATH
pods() { # ROLE: name, uid and restarts of each, in order
    kubectl get pods -l "app.kubernetes.io/component=$1" -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort
}
names() { kubectl get pods -l "app.kubernetes.io/component=$1" -o 'jsonpath={.items[*].metadata.name}'; } # ROLE
pid_of() { # POD: of its first process, outside
    local id
    id=$(field "pod/$1" '.status.containerStatuses[0].containerID')
    echo "${id#kubelab://}"
}
restarts() { field "pod/$1" '.status.containerStatuses[0].restartCount'; } # POD
has_restarted() { [ "$(restarts "$1")" -gt "$2" ]; }                     # POD SINCE
upgrade() { # FLAG...
    helm upgrade demo "$CHART" --reset-then-reuse-values --wait \
        --timeout 180s "$@" >/dev/null || fail "helm upgrade $*"
}

# -- of Weft, as a pod of the namespace sees it -------------------------------

# One pod that is no part of the release: clients run in its network.
client_up() {
    cat <<END_POD | kubectl create -f - >/dev/null
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  nodeName: $client_node
  containers: [{name: sh, image: "weft/weft:0.1.0", command: [sleep, "3600"]}]
END_POD
    kubectl wait --for=condition=Ready pod/client --timeout=60s >/dev/null
    client_pid=$(pid_of client)
}
in_network() { # PID COMMAND...
    local pid=$1
    shift
    nsenter --target "$pid" --net -- "$@"
}
weft_client() { # COMMAND FLAG...
    local command=$1
    shift
    in_network "$client_pid" "$WEFT" "$command" \
        --addr "$full-router.default.svc:7070" --tls-ca "$WORK/ca.crt" "$@"
}
members() { # ROLE: how many serve
    weft_client status --json | python3 -c 'import json, sys
print(sum(m["role"] == sys.argv[1] and m["state"] == "serving"
          for m in json.load(sys.stdin)["members"]))' "$1"
}
serve() { [ "$(members "$1")" = "$2" ]; } # ROLE COUNT

# What goes wrong, and what is renewed, while requests run. Sourced by prove.
# shellcheck shell=bash disable=SC2154

expert_is_lost() {
    say 'an expert pod is killed, and one is stopped'
    local pod=$full-experts-1 before
    load_start losses
    before=$(restarts $pod)
    kill -9 "$(pid_of $pod)"
    eventually 60 has_restarted $pod "$before"
    eventually 60 serve experts 3
    one_answer_more
    pod=$full-experts-2
    before=$(restarts $pod)
    kill -STOP "$(pid_of $pod)"
    eventually 120 has_restarted $pod "$before"
    eventually 60 serve experts 3
    load_stop 'kill -9 and -STOP of an expert pod'
}

bad_image_is_undone() {
    say 'a bad image is undone by a rollback'
    local good
    good=$(helm history demo -o json | python3 -c \
        'import json, sys; print(json.load(sys.stdin)[-1]["revision"])')
    load_start rollback
    refused 'timed out|not ready|deadline|failed' helm upgrade demo "$CHART" \
        --reset-then-reuse-values --set image.tag=bad --wait --timeout 25s
    load_is_well 'during a bad image'
    helm rollback demo "$good" --wait --timeout 120s >/dev/null ||
        fail 'the rollback'
    eventually 60 serve experts 3
    load_stop 'a bad image and its rollback'
}

every_role_is_renewed() {
    say 'a new version, and with it a rolling restart of every role'
    local role pod before
    before=$(pods router && pods layers && pods experts)
    load_start restart
    upgrade --set-string image.tag=0.1.1
    eventually 60 serve experts 3
    eventually 60 serve layers 2
    load_stop 'a rolling update of every role'
    for role in router layers experts; do
        for pod in $(names $role); do
            is "$(field "pod/$pod" '.spec.containers[0].image')" weft/weft:0.1.1 "image of $pod"
            grep -qF "$(field "pod/$pod" .metadata.uid)" <<<"$before" && fail "$pod is of before"
            is "$(restarts "$pod")" 0 "restarts of $pod"
        done
    done
}

# Where most expert pods are: at least two of three.
node_is_drained() {
    local node
    node=$(kubectl get pods -l app.kubernetes.io/component=experts \
        -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' |
        sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')
    say "node $node is drained, one pod of a role at a time, as its budget says"
    load_start drain
    kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data \
        --timeout=200s >"$WORK/drain.log" 2>&1 ||
        fail "drain: $(tail -n 5 "$WORK/drain.log")"
    grep -q "$full-experts-[0-9].*would violate the pod's disruption budget" "$WORK/drain.log" ||
        fail "no expert pod had to wait: $(cat "$WORK/drain.log")"
    kubectl uncordon "$node" >/dev/null
    eventually 60 serve experts 3
    load_stop 'a drained node'
}

# Within the one number, by its own end: it has not been killed.
pods_end_in_time() {
    say "a deleted pod drains and ends within drain.seconds=$drain_seconds"
    local role pod start took
    load_start delete
    for role in experts layers router; do
        pod=$(names $role | cut -d' ' -f1)
        kubectl logs --follow "$pod" >"$WORK/last.log" 2>&1 &
        local log=$!
        start=$SECONDS
        kubectl delete pod "$pod" --timeout=120s >/dev/null
        took=$((SECONDS - start))
        wait $log || true
        [ $took -le "$drain_seconds" ] ||
            fail "$pod took $took s to end; drain.seconds is $drain_seconds"
        grep -q 'lifecycle draining' "$WORK/last.log" || fail "$pod did not drain"
        say "  $pod: $took s"
        ok
        eventually 60 kubectl rollout status "$(owner_of $role)" --timeout=1s
        eventually 60 serve experts 3
    done
    load_stop 'deleted pods of every role'
}
owner_of() { # ROLE
    case $1 in
    router) echo deployment/$full-router ;;
    layers) echo statefulset/$full-layers-s0 ;;
    experts) echo statefulset/$full-experts ;;
    esac
}

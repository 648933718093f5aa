# The expert role is scaled, by hand and by a scaler. Sourced by prove.
# shellcheck shell=bash disable=SC2154

others() { pods router && pods layers && pods etcd; }

pool_is_resized_under_load() {
    say 'the pool is resized while eight streams run: 2, 4, 3, 2, and 3 by kubectl'
    local before
    before=$(others)
    load_start resize
    local n
    for n in 4 3 2; do
        upgrade --set experts.replicas=$n
        eventually 60 serve experts $n
        one_answer_more
    done
    kubectl scale statefulset $full-experts --replicas=3 >/dev/null
    eventually 60 serve experts 3
    load_stop 'resized 2, 4, 3, 2, 3'
    is "$(others)" "$before" 'pods of other roles'
    # What Helm knows is what there is.
    upgrade --set experts.replicas=3
    is "$(others)" "$before" 'pods of other roles'
}

replicas_are() { [ "$(field statefulset/$full-experts .spec.replicas)" = "$1" ]; }

scaler_by_cpu() {
    say 'an autoscaler by CPU takes over, and follows the expert role up and down'
    local before
    before=$(pods experts)
    # What the scaler wants: 80 % of what is asked for.
    use_cpu 16m
    upgrade --set experts.autoscaling.enabled=true,experts.autoscaling.minReplicas=2,experts.autoscaling.maxReplicas=4
    is "$(pods experts)" "$before" 'pods, when a scaler takes over'
    use_cpu 200m
    eventually 90 replicas_are 4
    eventually 60 serve experts 4
    # Helm and the scaler do not quarrel.
    use_cpu 16m
    upgrade --set monitoring.dashboard.enabled=true
    replicas_are 4 || fail 'an upgrade has taken back what the scaler gave'
    use_cpu 1m
    eventually 90 follows_down
    eventually 60 serve experts 2
}
# The lab's usage of a pod is what its annotation says.
use_cpu() {
    kubectl annotate --overwrite pod \
        -l app.kubernetes.io/component=experts "kubelab/cpu=$1" >/dev/null
}
follows_down() { use_cpu 1m && replicas_are 2; }

# Real streams, the pods' real metric, and a real HorizontalPodAutoscaler; the
# small server between them stands for an adapter of Prometheus.
scaler_by_metric() {
    say 'an autoscaler by weft_expert_busy_ratio follows real load up and down'
    adapter_up
    upgrade --set experts.autoscaling.enabled=true \
        --set-json 'experts.autoscaling.metrics=[{"type":"Pods","pods":{"metric":{"name":"weft_expert_busy_ratio"},"target":{"type":"AverageValue","averageValue":"30m"}}}]' \
        --set-json 'experts.autoscaling.behavior={"scaleDown":{"stabilizationWindowSeconds":5}}'
    eventually 60 replicas_are 2
    load_start metric
    eventually 90 replicas_are 4
    eventually 60 serve experts 4
    load_stop 'scaled by a metric of Weft'
    eventually 120 replicas_are 2
    eventually 60 serve experts 2
    kill "$adapter"
    wait "$adapter" 2>/dev/null || true
    adapter=
    kubectl delete apiservice v1beta2.custom.metrics.k8s.io >/dev/null
}
adapter_up() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
        -subj /CN=adapter -days 1 -keyout "$WORK/adapter.key" \
        -out "$WORK/adapter.crt" 2>/dev/null
    python3 "$here/adapter.py" "$node_address" 10251 "$WORK/adapter.crt" \
        "$WORK/adapter.key" weft_expert_busy_ratio >"$WORK/adapter.log" 2>&1 &
    adapter=$!
    cat <<END_OBJECTS | kubectl create -f - >/dev/null
apiVersion: v1
kind: Service
metadata: {name: adapter, namespace: kube-system}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: adapter, namespace: kube-system, labels: {kubernetes.io/service-name: adapter}}
addressType: IPv4
ports: [{name: "", port: 10251}]
endpoints: [{addresses: ["$node_address"]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta2.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta2
  service: {namespace: kube-system, name: adapter}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
END_OBJECTS
    eventually 60 kubectl get --raw \
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/weft_expert_busy_ratio?labelSelector=app.kubernetes.io%2Fcomponent%3Dexperts"
}

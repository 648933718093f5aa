{{- /* What a schema cannot say: values that contradict each other. */ -}}
{{- define "weft.check" -}}
{{- $m := .Values.model -}}
{{- $n := 0 -}}
{{- if $m.pvc.claimName }}{{ $n = add1 $n }}{{ end -}}
{{- if $m.hostPath.path }}{{ $n = add1 $n }}{{ end -}}
{{- if $m.download.enabled }}{{ $n = add1 $n }}{{ end -}}
{{- if ne (int $n) 1 -}}
{{- fail (printf "model: exactly one of model.pvc.claimName, model.hostPath.path and model.download.enabled is wanted, %d are set" $n) -}}
{{- end -}}
{{- if and $m.download.enabled (not $m.download.image) -}}
{{- fail "model.download.image is empty: the image whose command fills $MODEL_DIR" -}}
{{- end -}}
{{- if and .Values.etcd.install .Values.etcd.endpoints -}}
{{- fail "etcd.endpoints is set and etcd.install is true: one etcd is wanted" -}}
{{- end -}}
{{- if not (or .Values.etcd.install .Values.etcd.endpoints) -}}
{{- fail "etcd.endpoints is empty and etcd.install is false: an etcd is wanted" -}}
{{- end -}}
{{- if and .Values.etcd.install (or .Values.etcd.tlsSecret .Values.etcd.userSecret) -}}
{{- fail "etcd.tlsSecret and etcd.userSecret are of an etcd of yours; with etcd.install true the release's own certificate is used" -}}
{{- end -}}
{{- if and .Values.etcd.install (eq 0 (mod (int .Values.etcd.replicas) 2)) -}}
{{- fail (printf "etcd.replicas is %d: an odd number is wanted" (int .Values.etcd.replicas)) -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "secret") (not .Values.tls.existingSecret) -}}
{{- fail "tls.existingSecret is empty with tls.mode secret" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "certManager") (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name is empty with tls.mode certManager" -}}
{{- end -}}
{{- $pods := dict "router" (int .Values.router.replicas) "layers" (mul .Values.layers.replicas .Values.layers.stages | int) "experts" (int .Values.experts.replicas) -}}
{{- range $role := list "router" "layers" "experts" -}}
{{- $r := index $.Values $role -}}
{{- $least := get $pods $role -}}
{{- with $r.autoscaling -}}{{- if .enabled -}}{{- $least = int .minReplicas -}}{{- end -}}{{- end -}}
{{- if and $r.pdb.enabled (eq (kindIs "invalid" $r.pdb.minAvailable) (kindIs "invalid" $r.pdb.maxUnavailable)) -}}
{{- fail (printf "%s.pdb: one of minAvailable and maxUnavailable is wanted" $role) -}}
{{- end -}}
{{- if and $r.pdb.enabled (not (kindIs "string" $r.pdb.minAvailable)) (gt (int $r.pdb.minAvailable) $least) -}}
{{- fail (printf "%s.pdb: minAvailable %d of %d pods can never hold" $role (int $r.pdb.minAvailable) $least) -}}
{{- end -}}
{{- if hasKey $r "backend" -}}
{{- if and (eq $r.backend "cpu") (gt (int $r.gpu.count) 0) -}}
{{- fail (printf "%s.backend is cpu and %s.gpu.count is %d: devices would be held and not used" $role $role (int $r.gpu.count)) -}}
{{- end -}}
{{- if and (eq $r.backend "cuda") (eq (int $r.gpu.count) 0) (not $r.resources.claims) -}}
{{- fail (printf "%s.backend is cuda and %s.gpu.count is 0: no device is asked for" $role $role) -}}
{{- end -}}
{{- end -}}
{{- with $r.autoscaling -}}
{{- if and .enabled (eq .type "hpa") .triggers -}}
{{- fail (printf "%s.autoscaling.triggers are of type keda, and the type is hpa" $role) -}}
{{- end -}}
{{- if and .enabled (eq .type "keda") .metrics -}}
{{- fail (printf "%s.autoscaling.metrics are of type hpa, and the type is keda" $role) -}}
{{- end -}}
{{- if and .enabled (eq .type "hpa") (not .metrics) -}}
{{- /* Then it is CPU, in parts of what is requested. */ -}}
{{- if gt (int $r.gpu.count) 0 -}}
{{- fail (printf "%s.autoscaling.metrics is empty and %s.gpu.count is %d: CPU time says nothing about a device" $role $role (int $r.gpu.count)) -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" $r.resources) -}}
{{- fail (printf "%s.autoscaling.metrics is empty, which means CPU, and %s.resources.requests.cpu is not set" $role $role) -}}
{{- end -}}
{{- end -}}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "%s.autoscaling: maxReplicas %d is below minReplicas %d" $role (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- if and .enabled (eq .type "keda") (not .triggers) -}}
{{- fail (printf "%s.autoscaling.triggers is empty with type keda" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.layers -}}
{{- if and (gt (int .gpu.count) 0) (ne (int .gpu.count) (int .tensorParallel)) -}}
{{- fail (printf "layers.gpu.count is %d and layers.tensorParallel is %d: each rank computes on one device" (int .gpu.count) (int .tensorParallel)) -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.experts.gpu.count) 1 -}}
{{- fail (printf "experts.gpu.count is %d: an expert shard computes on one device" (int .Values.experts.gpu.count)) -}}
{{- end -}}
{{- $owners := int .Values.router.expertReplicas -}}
{{- $key := ternary "autoscaling.minReplicas" "replicas" .Values.experts.autoscaling.enabled -}}
{{- $least := ternary .Values.experts.autoscaling.minReplicas .Values.experts.replicas .Values.experts.autoscaling.enabled | int -}}
{{- if lt $least $owners -}}
{{- fail (printf "experts.%s %d is below router.expertReplicas %d: every expert is held by that many shards" $key $least $owners) -}}
{{- end -}}
{{- range $name, $route := pick .Values.gateway "grpcRoute" "httpRoute" -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- fail (printf "gateway.%s.parentRefs is empty: the gateway that it is attached to" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

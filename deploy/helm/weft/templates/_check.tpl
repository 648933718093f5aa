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
{{- range $role := list "router" "layers" "experts" -}}
{{- $r := index $.Values $role -}}
{{- if and $r.pdb.enabled (eq (kindIs "invalid" $r.pdb.minAvailable) (kindIs "invalid" $r.pdb.maxUnavailable)) -}}
{{- fail (printf "%s.pdb: one of minAvailable and maxUnavailable is wanted" $role) -}}
{{- end -}}
{{- with $r.autoscaling -}}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "%s.autoscaling: maxReplicas %d is below minReplicas %d" $role (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}
{{- if and .enabled (eq .type "keda") (not .triggers) -}}
{{- fail (printf "%s.autoscaling.triggers is empty with type keda" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.experts.autoscaling.enabled) (lt (int .Values.experts.replicas) (int .Values.router.expertReplicas)) -}}
{{- fail (printf "experts.replicas %d is below router.expertReplicas %d: every expert is held by that many shards" (int .Values.experts.replicas) (int .Values.router.expertReplicas)) -}}
{{- end -}}
{{- end -}}

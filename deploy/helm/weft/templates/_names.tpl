{{- define "weft.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weft.cluster" -}}
{{ default (include "weft.fullname" .) .Values.clusterName }}
{{- end -}}

{{- /* What selects the pods of a role: {root, role}. */ -}}
{{- define "weft.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 40 | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "weft.labels" -}}
{{ include "weft.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* {root, image}: registry, repository, tag or digest. */ -}}
{{- define "weft.image" -}}
{{- $registry := ternary (printf "%s/" .root.Values.image.registry) "" (ne .root.Values.image.registry "") -}}
{{- if .image.digest -}}
{{ printf "%s%s@%s" $registry .image.repository .image.digest }}
{{- else -}}
{{ printf "%s%s:%s" $registry .image.repository (default .root.Chart.AppVersion .image.tag) }}
{{- end -}}
{{- end -}}

{{- define "weft.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "weft.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "weft.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{ .Values.tls.existingSecret }}
{{- else -}}
{{ include "weft.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "weft.etcdEndpoints" -}}
{{- if .Values.etcd.install -}}
{{- $full := include "weft.fullname" . -}}
{{- $all := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $all = append $all (printf "%s-etcd-%d.%s-etcd.%s.svc:2379" $full $i $full $.Release.Namespace) -}}
{{- end -}}
{{ join "," $all }}
{{- else -}}
{{ join "," .Values.etcd.endpoints }}
{{- end -}}
{{- end -}}

{{- /* Names that the release's certificate is for. */ -}}
{{- define "weft.dnsNames" -}}
{{- $full := include "weft.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- $all := list "localhost" (printf "%s-router" $full) -}}
{{- range $service := list "router" "layers" "experts" "etcd" -}}
{{- $all = append $all (printf "%s-%s.%s.svc" $full $service $ns) -}}
{{- $all = append $all (printf "*.%s-%s.%s.svc" $full $service $ns) -}}
{{- end -}}
{{ toJson $all }}
{{- end -}}

{{- /* The pod of a role: {root, role, args (list), ports (list), labels (dict),
env (list; or none)}.
What roles share is here once: identity, security, model, certificates, probes,
drain. */ -}}
{{- define "weft.pod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $r := index $v .role -}}
{{- $notice := min 10 (div (int $v.drain.seconds) 6) -}}
{{- $tls := ne $v.tls.mode "off" -}}
{{- $etcdTls := or (and $v.etcd.install $tls) (ne $v.etcd.tlsSecret "") -}}
metadata:
  labels:
    {{- include "weft.labels" . | nindent 4 }}
    {{- with .labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $r.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $r.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "weft.serviceAccount" $root | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # The process is told {{ sub (int $v.drain.seconds) $notice }} s; what is beyond is for its last words.
  terminationGracePeriodSeconds: {{ add (int $v.drain.seconds) 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
    {{- with $r.podSecurityContext }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- if $v.model.download.enabled }}
  initContainers:
    - name: download
      image: {{ $v.model.download.image }}
      {{- with $v.model.download.command }}
      command: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.model.download.args }}
      args: {{- toYaml . | nindent 8 }}
      {{- end }}
      env:
        - {name: MODEL_DIR, value: /model}
        {{- with $v.model.download.env }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with $v.model.download.envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.model.download.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      volumeMounts:
        - {name: model, mountPath: /model}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: weft
      image: {{ include "weft.image" (dict "root" $root "image" $v.image) }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args:
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        - --model=/model
        - --cluster={{ include "weft.cluster" $root }}
        - --etcd={{ include "weft.etcdEndpoints" $root }}
        - --id=$(POD_NAME)
        - --drain-seconds={{ sub (int $v.drain.seconds) $notice }}
        {{- if $tls }}
        - --link-cert=/tls/tls.crt
        - --link-key=/tls/tls.key
        - --link-ca=/tls/ca.crt
        {{- end }}
        {{- if $etcdTls }}
        {{- $at := ternary "/tls" "/etcd-tls" $v.etcd.install }}
        - --etcd-ca={{ $at }}/ca.crt
        - --etcd-cert={{ $at }}/tls.crt
        - --etcd-key={{ $at }}/tls.key
        {{- end }}
        {{- if $v.etcd.userSecret }}
        - --etcd-user-file=/etcd-user/user
        {{- end }}
        {{- range $r.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        {{- with .env }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- with $r.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports: {{- toYaml .ports | nindent 8 }}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: {{ $r.probes.startup.periodSeconds }}
        timeoutSeconds: {{ $r.probes.startup.timeoutSeconds }}
        failureThreshold: {{ max 1 (div (int $r.probes.startup.seconds) (int $r.probes.startup.periodSeconds)) }}
      readinessProbe:
        {{- /* The kubelet's gRPC probe speaks no TLS, and shards serve no gRPC. */}}
        {{- if and (eq .role "router") (not (and $tls $v.tls.public)) }}
        grpc: {port: 7070, service: weft.v1.Generation}
        {{- else }}
        httpGet: {path: /readyz, port: http}
        {{- end }}
        {{- toYaml $r.probes.readiness | nindent 8 }}
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        {{- toYaml $r.probes.liveness | nindent 8 }}
        # What hangs has nothing to drain.
        terminationGracePeriodSeconds: {{ add (max 1 $notice) 5 }}
      lifecycle:
        preStop: {sleep: {seconds: {{ max 1 $notice }}}}
      resources: {{- include "weft.resources" $r | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]{{ if $r.rdma.enabled }}, add: [IPC_LOCK]{{ end }}}
        {{- with $r.securityContext }}{{ toYaml . | nindent 8 }}{{ end }}
      volumeMounts:
        - {name: model, mountPath: /model, readOnly: true{{ with $v.model.pvc.subPath }}, subPath: {{ . | quote }}{{ end }}}
        - {name: tmp, mountPath: /tmp}
        {{- if gt (int $r.gpu.count) 0 }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- if $tls }}
        - {name: tls, mountPath: /tls, readOnly: true}
        {{- end }}
        {{- if $v.etcd.tlsSecret }}
        - {name: etcd-tls, mountPath: /etcd-tls, readOnly: true}
        {{- end }}
        {{- if $v.etcd.userSecret }}
        - {name: etcd-user, mountPath: /etcd-user, readOnly: true}
        {{- end }}
        {{- if and (eq .role "router") $v.auth.existingSecret }}
        - {name: auth, mountPath: /auth, readOnly: true}
        {{- end }}
        {{- with $r.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: model
      {{- if $v.model.pvc.claimName }}
      persistentVolumeClaim: {claimName: {{ $v.model.pvc.claimName | quote }}, readOnly: true}
      {{- else if $v.model.hostPath.path }}
      hostPath: {path: {{ $v.model.hostPath.path | quote }}, type: {{ $v.model.hostPath.type | quote }}}
      {{- else }}
      emptyDir: { {{- with $v.model.download.sizeLimit }}sizeLimit: {{ . }}{{ end -}} }
      {{- end }}
    - {name: tmp, emptyDir: {}}
    {{- if gt (int $r.gpu.count) 0 }}
    # What NCCL shares between processes of a node.
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
    {{- end }}
    {{- if $tls }}
    - {name: tls, secret: {secretName: {{ include "weft.tlsSecret" $root | quote }}, defaultMode: 0440}}
    {{- end }}
    {{- if $v.etcd.tlsSecret }}
    - {name: etcd-tls, secret: {secretName: {{ $v.etcd.tlsSecret | quote }}, defaultMode: 0440}}
    {{- end }}
    {{- if $v.etcd.userSecret }}
    - {name: etcd-user, secret: {secretName: {{ $v.etcd.userSecret | quote }}, defaultMode: 0440}}
    {{- end }}
    {{- if and (eq .role "router") $v.auth.existingSecret }}
    - {name: auth, secret: {secretName: {{ $v.auth.existingSecret | quote }}, defaultMode: 0440}}
    {{- end }}
    {{- with $r.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- include "weft.scheduling" . | nindent 2 }}
{{- end -}}

{{- /* Requests and limits as given; devices are asked for in whole numbers. */ -}}
{{- define "weft.resources" -}}
{{- $all := deepCopy .resources -}}
{{- $devices := dict -}}
{{- if gt (int .gpu.count) 0 }}{{ $_ := set $devices .gpu.resourceName (int .gpu.count) }}{{ end -}}
{{- if .rdma.enabled }}{{ $_ := set $devices .rdma.resourceName (int .rdma.count) }}{{ end -}}
{{- if $devices -}}
{{- $_ := set $all "limits" (merge $devices (default dict $all.limits)) -}}
{{- end -}}
{{ toYaml $all }}
{{- end -}}

{{- define "weft.scheduling" -}}
{{- $r := index .root.Values .role -}}
{{- with $r.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $r.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $r.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $r.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $r.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with $r.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
topologySpreadConstraints:
  {{- if $r.topologySpreadConstraints }}
  {{- toYaml $r.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "weft.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

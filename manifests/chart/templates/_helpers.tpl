{{/* What every object carries besides its name. */}}
{{- define "metal3-guard.labels" -}}
app.kubernetes.io/name: metal3-guard
{{ include "metal3-guard.release" . }}
{{- end }}

{{/* Which release an object belongs to. */}}
{{- define "metal3-guard.release" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
The namespace as the owner of what lies in none, so that the garbage collector takes that away when
the namespace is deleted without `helm uninstall`: a webhook that nobody answers would refuse every
deletion of a template. Known only when Helm talks to the cluster and the namespace is there already.
*/}}
{{- define "metal3-guard.owner" -}}
{{- with lookup "v1" "Namespace" "" .Release.Namespace -}}
ownerReferences:
- apiVersion: v1
  kind: Namespace
  name: {{ .metadata.name }}
  uid: {{ .metadata.uid }}
{{- end }}
{{- end }}

{{/*
The objects of one kind as kustomize makes them, as a list under `items`. files/shipped.yaml is
written by manifests/render.sh.
*/}}
{{- define "metal3-guard.shipped" -}}
{{- $items := list }}
{{- $text := .root.Files.Get "files/shipped.yaml" | replace "metal3-guard-system" .root.Release.Namespace }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- if eq $object.kind $.kind }}{{ $items = append $items $object }}{{ end }}
{{- end }}
{{- dict "items" $items | toYaml }}
{{- end }}

{{- define "metal3-guard.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The Secret that certificates are kept in; only in mode `secret` has it another's name. */}}
{{- define "metal3-guard.secret" -}}
{{- if eq .Values.certificates.mode "secret" }}{{ .Values.certificates.secretName }}
{{- else }}metal3-guard-tls{{ end }}
{{- end }}

{{- define "metal3-guard.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "metal3-guard.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Name of the release's objects: the release's own, with the chart's where it lacks it. */}}
{{- define "proxy-operator.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What tells the release's pods from others; never changes. */}}
{{- define "proxy-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "proxy-operator.labels" -}}
{{ include "proxy-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "proxy-operator.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "proxy-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "proxy-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "proxy-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "proxy-operator.account" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* Rights in the namespaces of Proxies. */}}
{{- define "proxy-operator.fleetRules" -}}
# The fleet: watched; finalizer and spec hash are patched.
- apiGroups: [crawl.proxyoperator.dev]
  resources: [proxies]
  verbs: [get, list, watch, patch]
- apiGroups: [crawl.proxyoperator.dev]
  resources: [proxies/status]
  verbs: [patch]
# Where owner references are enforced, naming a Proxy as the owner of a pod asks for this.
- apiGroups: [crawl.proxyoperator.dev]
  resources: [proxies/finalizers]
  verbs: [update]
# User data and credentials: watched as metadata, read when needed. Inline user data of a pod is
# put into a Secret that lives as long as the pod.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, delete]
# The machines of the provider kubernetes.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, delete]
# What happened to a Proxy, in the words of kubectl describe. No reason is told twice in 10 minutes,
# so there is no series to patch.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

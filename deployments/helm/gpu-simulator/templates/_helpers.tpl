{{- define "gpu-simulator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- regexReplaceAll "-+$" ($full | replace "." "-" | trunc 50) "" }}
{{- end }}
{{- end }}

{{- define "gpu-simulator.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpu-simulator.labels" -}}
{{ include "gpu-simulator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpu-simulator.image" -}}
{{- $image := .Values.image }}
{{- $registry := "" }}
{{- if $image.registry }}
{{- $registry = printf "%s/" (trimSuffix "/" $image.registry) }}
{{- else if not (or (eq $image.pullPolicy "Never") (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $image.repository)) }}
{{- fail (printf "image.registry is not set, so %s would come from Docker Hub, where anybody can own the name: set image.registry to the registry of your images, or image.pullPolicy=Never if each node has them already" $image.repository) }}
{{- end }}
{{- $registry }}{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The parts of pods that the node's pod and the uninstallation have in common. */}}
{{- define "gpu-simulator.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- end }}

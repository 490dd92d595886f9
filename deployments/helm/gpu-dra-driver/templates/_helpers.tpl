{{- define "gpu-dra-driver.name" -}}
{{- default .Chart.Name .Values.nameOverride }}
{{- end }}

{{- define "gpu-dra-driver.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- /* Names of releases can have dots, those of Services cannot. */}}
{{- regexReplaceAll "-+$" ($full | replace "." "-" | trunc 40) "" }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-dra-driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpu-dra-driver.labels" -}}
{{ include "gpu-dra-driver.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpu-dra-driver.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (printf "%s-kubelet-plugin" (include "gpu-dra-driver.fullname" .)) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The reference of an image, of the chart's context and the image's values. */}}
{{- define "gpu-dra-driver.image" -}}
{{- $all := (index . 0).Values.image }}
{{- $image := index . 1 }}
{{- if regexMatch "(k8s-dra-driver-gpu|dra-driver-nvidia-gpu)$" $all.repository }}
{{- fail (printf "image.repository %s is the image of NVIDIA's driver, which has none of this chart's programs: set image.registry and image.repository to your own images (--set image.repository=gpu-dra-driver/dra-kubelet-plugin)" $all.repository) }}
{{- end }}
{{- $registry := "" }}
{{- if $all.registry }}
{{- $registry = printf "%s/" (trimSuffix "/" $all.registry) }}
{{- else if not (or (eq $all.pullPolicy "Never") (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $image.repository)) }}
{{- fail (printf "image.registry is not set, so %s would come from Docker Hub, where anybody can own the name: set image.registry to the registry of your images, or image.pullPolicy=Never if each node has them already" $image.repository) }}
{{- end }}
{{- $registry }}{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $all.tag | default (index . 0).Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A list of environment variables with a user's own, which replace those of the same name. */}}
{{- define "gpu-dra-driver.env" -}}
{{- $own := index . 1 | default list }}
{{- $names := list }}
{{- range $own }}
{{- $names = append $names .name }}
{{- end }}
{{- $all := list }}
{{- range fromYamlArray (index . 0) }}
{{- if not (has .name $names) }}
{{- $all = append $all . }}
{{- end }}
{{- end }}
{{- toYaml (concat $all $own) }}
{{- end }}

{{/* "true" on OpenShift, which allows privileges by SecurityContextConstraints. */}}
{{- define "gpu-dra-driver.openshift" -}}
{{- if or (dig "enabled" false (.Values.openshift | default dict)) (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
true
{{- end -}}
{{- end }}

{{/* The labels of a pod with a user's own, which replace none. */}}
{{- define "gpu-dra-driver.podLabels" -}}
{{- $labels := fromYaml (include "gpu-dra-driver.selectorLabels" (index . 0)) }}
{{- $_ := set $labels "app.kubernetes.io/component" (index . 1) }}
{{- toYaml (merge $labels (index . 2 | default dict)) }}
{{- end }}

{{/* The programs are for Linux. */}}
{{- define "gpu-dra-driver.nodeSelector" -}}
{{- toYaml (merge (dict "kubernetes.io/os" "linux") (. | default dict)) }}
{{- end }}

{{/* "true" if the plugin serves metrics, and if the controller does. */}}
{{- define "gpu-dra-driver.pluginMetrics" -}}
{{- with .Values.kubeletPlugin.metrics }}{{ if and .enabled .gpuHttpEndpoint }}true{{ end }}{{ end }}
{{- end }}

{{- define "gpu-dra-driver.controllerMetrics" -}}
{{- with .Values.controller.metrics }}{{ if and .enabled .httpEndpoint }}true{{ end }}{{ end }}
{{- end }}

{{/* Directory of the driver below the kubelet's plugins directory. */}}
{{- define "gpu-dra-driver.pluginDataDirectory" -}}
{{ printf "%s/%s" (trimSuffix "/" .Values.kubeletPlugin.kubeletPluginsDirectoryPath) .Values.driverName }}
{{- end }}

{{/* "true" if the device nodes are not below the driver root. */}}
{{- define "gpu-dra-driver.separateDevRoot" -}}
{{- $machine := include "gpu-dra-driver.machine" . | fromYaml }}
{{- if and $machine.devRoot (ne (clean $machine.devRoot) (clean $machine.driverRoot)) -}}
true
{{- end -}}
{{- end }}

{{/* Values that are valid one by one, and that the API server refuses together, or
that let a program end at its start. */}}
{{- define "gpu-dra-driver.checks" -}}
{{- $plugin := .Values.kubeletPlugin }}
{{- $machine := include "gpu-dra-driver.machine" . | fromYaml }}
{{- $zero := list "0" "0%" }}
{{- with $plugin.updateStrategy }}
{{- if and (eq .type "RollingUpdate") (has (.rollingUpdate.maxUnavailable | toString) $zero) (has (.rollingUpdate.maxSurge | toString) $zero) }}
{{- fail "kubeletPlugin.updateStrategy.rollingUpdate: maxUnavailable and maxSurge are both 0, so no pod could be updated: set one of them to 1" }}
{{- end }}
{{- end }}
{{- include "gpu-dra-driver.distinct" (list "kubeletPlugin" "port" (dict
  "containers.gpus.healthcheckPort" ($plugin.containers.gpus.healthcheckPort | int)
  "metrics.gpuHttpEndpoint" (ternary ($plugin.metrics.gpuHttpEndpoint | default "" | splitList ":" | last | int) 0 (eq "true" (include "gpu-dra-driver.pluginMetrics" .))))) }}
{{- include "gpu-dra-driver.distinct" (list "kubeletPlugin" "directory" (dict
  "kubeletPluginsDirectoryPath" (include "gpu-dra-driver.pluginDataDirectory" . | clean) "cdiRoot" (clean $plugin.cdiRoot)
  "kubeletRegistrarDirectoryPath" (clean $plugin.kubeletRegistrarDirectoryPath)
  "kubeletPodResourcesDirectoryPath" (clean $plugin.kubeletPodResourcesDirectoryPath)
  "nvidiaDevRoot" (ternary (clean (printf "%s/dev" $machine.devRoot)) "" (eq "true" (include "gpu-dra-driver.separateDevRoot" .)))
  "/driver-root of the pod" "/driver-root" "/host/proc of the pod" "/host/proc" "/host/sys of the pod" "/host/sys" "/host/kmsg of the pod" "/host/kmsg"
  "/host/boot-id of the pod" "/host/boot-id" "/etc/gpu-dra-driver/sharing of the pod" "/etc/gpu-dra-driver/sharing")) }}
{{- if include "gpu-dra-driver.controller" . }}
{{- include "gpu-dra-driver.distinct" (list "the controller" "port" (dict
  "controller.healthPort" (.Values.controller.healthPort | int)
  "webhook.port" (ternary (.Values.webhook.port | int) 0 (eq "true" (include "gpu-dra-driver.webhook" .)))
  "controller.metrics.httpEndpoint" (ternary (.Values.controller.metrics.httpEndpoint | default "" | splitList ":" | last | int) 0 (eq "true" (include "gpu-dra-driver.controllerMetrics" .))))) }}
{{- end }}
{{- end }}

{{/* Fails if the name of a Service begins with a digit. */}}
{{- define "gpu-dra-driver.namesServices" -}}
{{- if not (regexMatch "^[a-z]" (include "gpu-dra-driver.fullname" .)) }}
{{- fail (printf "the release's name %s begins with a digit, and the name of a Service must not: set fullnameOverride" .Release.Name) }}
{{- end }}
{{- end }}

{{/* Fails if two of the named values are equal. 0, negative numbers and "" are unused. */}}
{{- define "gpu-dra-driver.distinct" -}}
{{- $of := index . 0 }}
{{- $what := index . 1 }}
{{- $seen := dict }}
{{- range $name, $value := index . 2 }}
{{- $key := toString $value }}
{{- if and (hasKey $seen $key) (or (hasPrefix "/" $key) (gt (int $value) 0)) }}
{{- fail (printf "%s: %s and %s have the same %s %s: change one of them" $of (get $seen $key) $name $what $key) }}
{{- end }}
{{- $_ := set $seen $key $name }}
{{- end }}
{{- end }}

{{/* "true" if the nodes' boards are simulated. */}}
{{- define "gpu-dra-driver.simulated" -}}
{{- if dig "enabled" false (.Values.simulator | default dict) }}true{{ end }}
{{- end }}

{{/* Where the driver and the kernel's files are on the nodes, as YAML. */}}
{{- define "gpu-dra-driver.machine" -}}
{{- $plugin := .Values.kubeletPlugin }}
{{- if include "gpu-dra-driver.simulated" . }}
{{- $root := clean (dig "root" "/var/lib/gpusim-root" .Values.simulator) }}
{{- toYaml (dict "driverRoot" $root "devRoot" "" "readOnly" false "proc" (printf "%s/proc" $root) "sys" (printf "%s/sys" $root)
  "kernelLog" (printf "%s/dev/kmsg" $root) "bootIDFile" "") }}
{{- else }}
{{- toYaml (dict "driverRoot" .Values.nvidiaDriverRoot "devRoot" .Values.nvidiaDevRoot "readOnly" $plugin.driverRootReadOnly
  "proc" $plugin.hostProcRoot "sys" $plugin.hostSysRoot "kernelLog" (dig "hostKernelLog" "/dev/kmsg" $plugin) "bootIDFile" $plugin.bootIDFile) }}
{{- end }}
{{- end }}

{{/* The affinity of plugin and supervisor. An upgrade of a release without one does not add the default, because the
DaemonSet controller would delete the pods of nodes that lack the labels, and claims there could not end. */}}
{{- define "gpu-dra-driver.affinity" -}}
{{- $affinity := .Values.kubeletPlugin.affinity }}
{{- if include "gpu-dra-driver.simulated" . -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions: [{key: gpu-simulator/present, operator: In, values: ["true"]}]
{{- else }}
{{- $name := printf "%s-kubelet-plugin" (include "gpu-dra-driver.fullname" .) }}
{{- $old := lookup "apps/v1" "DaemonSet" (include "gpu-dra-driver.namespace" .) $name }}
{{- $isDefault := contains "feature.node.kubernetes.io/pci-0302_10de.present" ($affinity | toJson) }}
{{- if and $affinity (not (and $old $isDefault (not (dig "spec" "template" "spec" "affinity" dict $old)))) }}
{{- toYaml $affinity }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether the plugin reads the kernel's log. A release of an older chart has no such value. */}}
{{- define "gpu-dra-driver.kernelLog" -}}
{{- if dig "kernelLog" false (.Values.health | default dict) }}true{{ end }}
{{- end }}

{{/* The environment of the plugin. */}}
{{- define "gpu-dra-driver.pluginEnv" -}}
{{- $plugin := .Values.kubeletPlugin }}
{{- $machine := include "gpu-dra-driver.machine" . | fromYaml }}
{{- $data := include "gpu-dra-driver.pluginDataDirectory" . }}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: DRIVER_NAME
  value: {{ .Values.driverName | quote }}
# Paths of the node. The container sees the driver's root as
# CONTAINER_DRIVER_ROOT. It sees a separate device root, the kubelet's
# directories and the CDI directory at the same path as the node.
- name: NVIDIA_DRIVER_ROOT
  value: {{ $machine.driverRoot | quote }}
- name: CONTAINER_DRIVER_ROOT
  value: /driver-root
{{- if include "gpu-dra-driver.separateDevRoot" . }}
- name: DEV_ROOT
  value: {{ $machine.devRoot | quote }}
{{- end }}
- name: CDI_ROOT
  value: {{ $plugin.cdiRoot | quote }}
- name: KUBELET_PLUGINS_DIRECTORY_PATH
  value: {{ $plugin.kubeletPluginsDirectoryPath | quote }}
- name: KUBELET_REGISTRAR_DIRECTORY_PATH
  value: {{ $plugin.kubeletRegistrarDirectoryPath | quote }}
- name: KUBELET_POD_RESOURCES_DIRECTORY_PATH
  value: {{ $plugin.kubeletPodResourcesDirectoryPath | quote }}
- name: PROC_ROOT
  value: /host/proc
- name: SYS_ROOT
  value: /host/sys
- name: BOOT_ID_FILE
  value: {{ if $machine.bootIDFile }}/host/boot-id/{{ base $machine.bootIDFile }}{{ else }}/host/proc/sys/kernel/random/boot_id{{ end }}
- name: HTTP_ENDPOINT
  value: {{ ternary $plugin.metrics.gpuHttpEndpoint "" $plugin.metrics.enabled | default "" | quote }}
- name: METRICS_PATH
  value: {{ $plugin.metrics.metricsPath | default "" | quote }}
- name: METRICS_IDLE
  value: {{ dig "idle" false $plugin.metrics | quote }}
- name: PPROF_PATH
  value: {{ $plugin.metrics.profilePath | default "" | quote }}
- name: HEALTHCHECK_PORT
  value: {{ $plugin.containers.gpus.healthcheckPort | int | quote }}
- name: MIG_DEVICES
  value: {{ and (dig "enabled" true $plugin.mig) (dig "DynamicMIG" true (.Values.featureGates | default dict)) | quote }}
- name: MONITOR_DEVICES
  value: {{ dig "monitors" "enabled" true $plugin | quote }}
- name: DEVICE_METADATA
  value: {{ dig "deviceMetadata" "enabled" true $plugin | quote }}
- name: CONTAINER_MEMORY_LIMITS
  value: {{ dig "containerMemoryLimits" "enabled" false $plugin | quote }}
- name: HEALTH_EVICT
  value: {{ dig "evict" list (.Values.health | default dict) | join "," | quote }}
- name: HEALTH_RESET
  value: {{ dig "reset" "Never" (.Values.health | default dict) | quote }}
- name: HEALTH_IGNORE_XIDS
  value: {{ dig "ignoreXIDs" list (.Values.health | default dict) | join "," | quote }}
- name: HEALTH_TAINT_XIDS
  value: {{ dig "taintXIDs" list (.Values.health | default dict) | join "," | quote }}
{{- if include "gpu-dra-driver.kernelLog" . }}
- name: KERNEL_LOG
  value: /host/kmsg
{{- end }}
{{- with .Values.schedulerVersion }}
- name: SCHEDULER_VERSION
  value: {{ . | quote }}
{{- end }}
- name: ALLOW_GPU_RESET
  value: {{ $plugin.mig.allowGPUReset | quote }}
- name: ADOPT_EXTERNAL_MIG
  value: {{ $plugin.mig.adoptExternal | quote }}
- name: MPS_KEEP_COMPUTE_MODE
  value: {{ .Values.mps.keepComputeMode | default false | quote }}
- name: MIG_MODE_IDLE
  value: {{ $plugin.mig.modeIdle | quote }}
{{- if include "gpu-dra-driver.mps" . }}
- name: MPS_DIR
  value: {{ $data }}/mps
{{- end }}
{{- if include "gpu-dra-driver.sharingConfig" . }}
- name: SHARING_CONFIG
  value: /etc/gpu-dra-driver/sharing/config.yaml
{{- end }}
{{- with include "gpu-dra-driver.demandConfigMap" . }}
- name: DEMAND_CONFIGMAP
  value: {{ . }}
{{- end }}
# Keeps the NVIDIA runtime, if it is the node's default, from adding
# GPUs and libraries to this container.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- end }}

{{/* The environment of the supervisor. */}}
{{- define "gpu-dra-driver.supervisorEnv" -}}
{{- $machine := include "gpu-dra-driver.machine" . | fromYaml }}
- name: MPS_DIR
  value: {{ include "gpu-dra-driver.pluginDataDirectory" . }}/mps
- name: DRIVER_ROOT
  value: /driver-root
{{- if include "gpu-dra-driver.separateDevRoot" . }}
- name: DEV_ROOT
  value: {{ $machine.devRoot | quote }}
{{- end }}
- name: MPS_SHM_SIZE
  value: {{ .Values.mps.shmSize | quote }}
- name: BOOT_ID_FILE
  value: {{ if $machine.bootIDFile }}/host/boot-id/{{ base $machine.bootIDFile }}{{ else }}/host/proc/sys/kernel/random/boot_id{{ end }}
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- end }}

{{/* "true" if the controller is enabled, and if each of its parts is. */}}
{{- define "gpu-dra-driver.controller" -}}
{{- if and .Values.resources.gpus.enabled .Values.controller.enabled -}}
true
{{- end -}}
{{- end }}

{{- define "gpu-dra-driver.webhook" -}}
{{- if and (include "gpu-dra-driver.controller" .) .Values.webhook.enabled -}}
true
{{- end -}}
{{- end }}

{{/* "true" if the controller's pods are in the network of their nodes. */}}
{{- define "gpu-dra-driver.hostNetwork" -}}
{{- if and (include "gpu-dra-driver.webhook" .) .Values.webhook.hostNetwork -}}
true
{{- end -}}
{{- end }}

{{/* "true" if the controller makes the webhook's certificate itself. */}}
{{- define "gpu-dra-driver.rotatesCerts" -}}
{{- if and (include "gpu-dra-driver.webhook" .) (not (include "gpu-dra-driver.certManager" .)) (ne "secret" (dig "tls" "mode" "" .Values.webhook)) -}}
true
{{- end -}}
{{- end }}

{{- define "gpu-dra-driver.controllerName" -}}
{{ include "gpu-dra-driver.fullname" . }}-controller
{{- end }}

{{- define "gpu-dra-driver.webhookName" -}}
{{ include "gpu-dra-driver.fullname" . }}-webhook
{{- end }}

{{- define "gpu-dra-driver.leaseName" -}}
dra-controller.{{ .Values.driverName }}
{{- end }}

{{/* Scheduling and security context of the controller's image, for the controller and its checks. */}}
{{- define "gpu-dra-driver.controllerPod" -}}
serviceAccountName: {{ include "gpu-dra-driver.controllerName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $context := .Values.controller.podSecurityContext | default dict }}
{{- if include "gpu-dra-driver.openshift" . }}
{{- /* OpenShift chooses the user from the range of the namespace, and refuses others. */}}
{{- $context = omit $context "runAsUser" "runAsGroup" }}
{{- end }}
{{- with $context }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- include "gpu-dra-driver.nodeSelector" .Values.controller.nodeSelector | nindent 2 }}
{{- with .Values.controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The checks have the controller's environment, so that they check the installed objects. */}}
{{- define "gpu-dra-driver.controllerContainer" -}}
image: {{ include "gpu-dra-driver.image" (list . .Values.controller.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  {{- include "gpu-dra-driver.env" (list (include "gpu-dra-driver.controllerEnv" .) .Values.controller.env) | nindent 2 }}
{{- with .Values.controller.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Shows the reason of an exit in the pod's status.
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "gpu-dra-driver.controllerEnv" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: MEMORY_LIMIT
  valueFrom:
    resourceFieldRef:
      resource: limits.memory
- name: DRIVER_NAME
  value: {{ .Values.driverName | quote }}
- name: LEASE_NAME
  value: {{ include "gpu-dra-driver.leaseName" . }}
- name: HTTP_ENDPOINT
  value: {{ ternary .Values.controller.metrics.httpEndpoint "" .Values.controller.metrics.enabled | default "" | quote }}
- name: HEALTH_ENDPOINT
  value: ":{{ .Values.controller.healthPort | int }}"
- name: WEBHOOK
  value: {{ .Values.webhook.enabled | quote }}
{{- if .Values.webhook.enabled }}
- name: WEBHOOK_PORT
  value: {{ .Values.webhook.port | int | quote }}
- name: WEBHOOK_SERVICE
  value: {{ include "gpu-dra-driver.webhookName" . }}
- name: WEBHOOK_CONFIGURATION
  value: {{ include "gpu-dra-driver.webhookName" . }}
- name: CERT_SECRET
  value: {{ include "gpu-dra-driver.certSecret" . }}
- name: ROTATE_CERTS
  value: {{ include "gpu-dra-driver.rotatesCerts" . | not | not | quote }}
{{- with dig "tls" "clientCA" "" .Values.webhook }}
- name: WEBHOOK_CLIENT_CA
  value: {{ . | quote }}
{{- end }}
- name: DENY_UNSATISFIABLE
  value: {{ .Values.webhook.denyUnsatisfiable | default false | quote }}
{{- end }}
{{- if include "gpu-dra-driver.budgets" . }}
- name: BUDGETS
  value: "true"
{{- end }}
- name: GPU_CLASS
  value: {{ .Values.deviceClasses.gpu.enabled | quote }}
- name: GPU_RESOURCE_NAME
  value: {{ .Values.deviceClasses.gpu.extendedResourceName | default "" | quote }}
- name: MODEL_CLASSES
  value: {{ .Values.deviceClasses.models.enabled | quote }}
- name: MODEL_CLASS_PREFIX
  value: {{ .Values.deviceClasses.models.prefix | default "" | quote }}
- name: PROFILE_CLASSES
  value: {{ .Values.deviceClasses.mig.enabled | quote }}
- name: GROUP_CLASSES
  value: {{ .Values.deviceClasses.nvlink.enabled | quote }}
- name: EXTENDED_RESOURCE_PREFIX
  value: {{ .Values.deviceClasses.mig.extendedResourcePrefix | default "" | quote }}
- name: CLASS_GRACE
  value: {{ .Values.deviceClasses.grace | quote }}
- name: NODE_LABELS
  value: {{ .Values.nodeLabels.enabled | quote }}
{{- if include "gpu-dra-driver.podShares" . }}
- name: POD_SHARES
  value: "true"
{{- end }}
- name: POD_EVENTS
  value: {{ .Values.podEvents.enabled | quote }}
{{- if and .Values.podEvents.enabled .Values.podEvents.nameOtherNamespaces }}
- name: POD_EVENTS_NAME_OTHERS
  value: "true"
{{- end }}
{{- if .Values.preemption.enabled }}
- name: PREEMPTION
  value: "true"
{{- if .Values.preemption.violateDisruptionBudgets }}
- name: PREEMPTION_VIOLATE_BUDGETS
  value: "true"
{{- end }}
{{- with .Values.preemption.exemptNamespaces }}
- name: PREEMPTION_EXEMPT_NAMESPACES
  value: {{ join "," . }}
{{- end }}
{{- with .Values.preemption.exemptPriorityClasses }}
- name: PREEMPTION_EXEMPT_CLASSES
  value: {{ join "," . }}
{{- end }}
{{- if not .Values.preemption.exemptGroups }}
- name: PREEMPTION_EXEMPT_GROUPS
  value: "false"
{{- end }}
{{- end }}
{{- with .Values.cost.prices }}
{{- $prices := list }}
{{- range $model, $price := . }}
{{- $prices = append $prices (printf "%s=%v" $model $price) }}
{{- end }}
- name: GPU_PRICES
  value: {{ $prices | join "," | quote }}
{{- end }}
{{- with include "gpu-dra-driver.demandConfigMap" . }}
- name: DEMAND_CONFIGMAP
  value: {{ . }}
{{- $publish := get (include "gpu-dra-driver.sharingConfig" $ | fromYaml) "publish" | toJson }}
{{- $auto := list }}
{{- range $field, $kind := dict "groups" "nvlink-group" "monitors" "monitor" }}
{{- if contains (printf "%q:\"Auto\"" $field) $publish }}
{{- $auto = append $auto $kind }}
{{- end }}
{{- end }}
{{- with $.Values.controller.maxServingNodes }}
- name: MAX_SERVING_NODES
  value: {{ . | quote }}
{{- end }}
{{- if include "gpu-dra-driver.sharesOnDemand" $ }}
- name: SHARES_ON_DEMAND
  value: "true"
{{- end }}
{{- with $auto }}
- name: AUTO_KINDS
  value: {{ join "," . }}
{{- end }}
{{- end }}
{{- end }}

{{/* True of an object that names this driver: a claim, or a template of claims,
that has a configuration for it; a class that has one or selects its devices. */}}
{{- define "gpu-dra-driver.namesTheDriver" -}}
[object.?spec.?spec.or(object.?spec).orValue({})].exists(s,
(s.?devices.?config.orValue([]) + s.?config.orValue([])).exists(c, c.?opaque.?driver.orValue('') == '{{ .Values.driverName }}') ||
s.?selectors.orValue([]).map(x, x.?cel.?expression.orValue('')).exists(x, x.contains('"{{ .Values.driverName }}"') || x.contains("'{{ .Values.driverName }}'")))
{{- end }}

{{/* The types of the chart's classes, by name. */}}
{{- define "gpu-dra-driver.classTypes" -}}
{{ .Values.driverName }}: gpu
mig.{{ trimPrefix "gpu." .Values.driverName }}: mig
nvlink.{{ .Values.driverName }}: nvlink-group
monitor.{{ .Values.driverName }}: monitor
{{- end }}

{{/* The selector of all devices of a type. */}}
{{- define "gpu-dra-driver.classExpression" -}}
device.driver == {{ squote .driver }} && device.attributes[{{ squote .driver }}].type == {{ squote .type }}
{{- end }}

{{- define "gpu-dra-driver.webhookRules" -}}
- apiGroups: [resource.k8s.io]
  apiVersions: [v1, v1beta1, v1beta2]
  operations: [CREATE]
  resources: [resourceclaims, resourceclaimtemplates]
  scope: Namespaced
- apiGroups: [resource.k8s.io]
  apiVersions: [v1, v1beta1, v1beta2]
  operations: [CREATE, UPDATE]
  resources: [deviceclasses]
  scope: Cluster
{{- end }}

{{- define "gpu-dra-driver.webhookConditions" -}}
# The controller's own writes must not wait for the controller, except dry runs,
# with which it tests the webhook.
- name: not-the-controller
  expression: >-
    request.userInfo.username != 'system:serviceaccount:{{ include "gpu-dra-driver.namespace" . }}:{{ include "gpu-dra-driver.controllerName" . }}' ||
    request.?dryRun.orValue(false)
- name: not-only-metadata
  expression: request.operation != 'UPDATE' || object.spec != oldObject.spec
{{ include "gpu-dra-driver.installed" . }}
{{- end }}

{{/* False once the driver's namespace is deleted: the Role that allows this is
in it. Otherwise the webhook and the policies would deny for ever. */}}
{{- define "gpu-dra-driver.installed" -}}
- name: the-driver-is-installed
  expression: >-
    authorizer.serviceAccount('{{ include "gpu-dra-driver.namespace" . }}', '{{ include "gpu-dra-driver.serviceAccountName" . }}')
    .group('').resource('serviceaccounts').namespace('{{ include "gpu-dra-driver.namespace" . }}')
    .name('{{ include "gpu-dra-driver.serviceAccountName" . }}').check('get').allowed()
{{- end }}

{{/* "true" if the GPU budgets of namespaces are enforced. */}}
{{- define "gpu-dra-driver.budgets" -}}
{{- if and (include "gpu-dra-driver.webhook" .) (dig "enabled" true (.Values.budgets | default dict)) -}}
true
{{- end -}}
{{- end }}

{{/* "true" if the controller makes the path of reviews under budgets a secret,
because API servers have no client certificate. */}}
{{- define "gpu-dra-driver.secretPath" -}}
{{- if and (include "gpu-dra-driver.budgets" .) (not (dig "tls" "clientCA" "" .Values.webhook)) -}}
true
{{- end -}}
{{- end }}

{{/* Selects the namespaces whose claims the webhook of budgets reviews. */}}
{{- define "gpu-dra-driver.budgetNamespaces" -}}
matchLabels:
  {{ .Values.driverName }}/budget: "true"
{{- end }}

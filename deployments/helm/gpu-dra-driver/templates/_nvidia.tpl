{{/* Values of NVIDIA's chart: what they mean here, so that a values file of it can be passed whole. */}}

{{/* The namespace of all objects. */}}
{{- define "gpu-dra-driver.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* "true" if there is a supervisor of MPS daemons. */}}
{{- define "gpu-dra-driver.mps" -}}
{{- if and .Values.mps.enabled (dig "MPSSupport" true (.Values.featureGates | default dict)) -}}
true
{{- end -}}
{{- end }}

{{/* The file of sharing settings and of what nodes publish, or nothing. They take precedence over consumableShares. */}}
{{- define "gpu-dra-driver.sharingConfig" -}}
{{- $shares := .Values.consumableShares | toString }}
{{- $from := dict }}
{{- if or (eq $shares "disabled") (not (dig "ConsumableShares" true (.Values.featureGates | default dict))) }}
{{- $from = dict "sharing" (dict "strategy" "None") }}
{{- else if regexMatch "^[1-9][0-9]*$" $shares }}
{{- $from = dict "sharing" (dict "maxShares" (int $shares)) }}
{{- end }}
{{- with .Values.publish }}
{{- $_ := set $from "publish" . }}
{{- end }}
{{- with mergeOverwrite $from (deepCopy (.Values.sharing.config | default dict)) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The ConfigMap for the MIG profiles that the cluster asks for, or nothing if no setting is Auto or nobody writes it. */}}
{{- define "gpu-dra-driver.demandConfigMap" -}}
{{- $settings := include "gpu-dra-driver.sharingConfig" . | fromYaml }}
{{- if and (include "gpu-dra-driver.controller" .) (contains "\"Auto\"" (get $settings "publish" | toJson)) }}
{{- include "gpu-dra-driver.fullname" . }}-asked
{{- end }}
{{- end }}

{{/* "true" if nodes share GPUs once an object asks for it, and the API server can add selectors to claims (1.36). */}}
{{- define "gpu-dra-driver.sharesOnDemand" -}}
{{- $publish := get (include "gpu-dra-driver.sharingConfig" . | fromYaml) "publish" | toJson }}
{{- if and (include "gpu-dra-driver.demandConfigMap" .) (contains "\"shareable\":\"Auto\"" $publish) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") -}}
true
{{- end -}}
{{- end }}

{{/* "true" if cert-manager issues the webhook's certificate. */}}
{{- define "gpu-dra-driver.certManager" -}}
{{- if or .Values.webhook.certManager.enabled (eq "cert-manager" (dig "tls" "mode" "" .Values.webhook)) -}}
true
{{- end -}}
{{- end }}

{{/* The issuer of that certificate as YAML, or nothing for a self-signed one. */}}
{{- define "gpu-dra-driver.issuer" -}}
{{- $tls := dig "tls" "certManager" dict .Values.webhook }}
{{- $kind := get (dict "clusterissuer" "ClusterIssuer" "issuer" "Issuer") (get $tls "issuerType") }}
{{- if .Values.webhook.certManager.issuerRef }}
{{- toYaml .Values.webhook.certManager.issuerRef }}
{{- else if $kind }}
{{- toYaml (dict "kind" $kind "name" (required "webhook.tls.certManager.issuerName is needed for this issuerType" (get $tls "issuerName"))) }}
{{- end }}
{{- end }}

{{/* The Secret of the certificate. */}}
{{- define "gpu-dra-driver.certSecret" -}}
{{- if eq "secret" (dig "tls" "mode" "" .Values.webhook) }}
{{- required "webhook.tls.secret.name is needed where webhook.tls.mode is secret" (dig "tls" "secret" "name" "" .Values.webhook) }}
{{- else }}
{{- include "gpu-dra-driver.webhookName" . }}-cert
{{- end }}
{{- end }}

{{/* The paths of values that are set and have no effect. */}}
{{- define "gpu-dra-driver.ignored" -}}
{{- $values := .Values }}
{{- $ignored := list }}
{{- range list "altProcDevices" "allowDefaultNamespace" "nvidiaCDIHookPath" "selectorLabelsOverride"
  "controller.containers" "controller.leaderElection" "controller.metrics.metricsPath" "controller.metrics.profilePath"
  "kubeletPlugin.containers.computeDomains" "kubeletPlugin.containers.init" "resources.computeDomains.imex"
  "webhook.affinity" "webhook.containerPort" "webhook.containers" "webhook.nodeSelector" "webhook.podAnnotations"
  "webhook.podSecurityContext" "webhook.priorityClassName" "webhook.replicas" "webhook.serviceAccount" "webhook.servicePort"
  "webhook.strategy" "webhook.tolerations" }}
{{- $at := $values }}
{{- range splitList "." . }}
{{- $at = get ($at | default dict) . }}
{{- end }}
{{- if $at }}
{{- $ignored = append $ignored . }}
{{- end }}
{{- end }}
{{- join " " $ignored }}
{{- end }}

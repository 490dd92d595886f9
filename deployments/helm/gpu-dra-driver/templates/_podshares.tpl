{{/* "true" if pods of labelled namespaces can ask for a share without a claim, and the API server can change them (1.36). */}}
{{- define "gpu-dra-driver.podShares" -}}
{{- if and (include "gpu-dra-driver.controller" .) (dig "enabled" false (.Values.podShares | default dict)) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") -}}
true
{{- end -}}
{{- end }}

{{/* The words of the forms: annotations of pods, and resources of containers. */}}
{{- define "gpu-dra-driver.podShareWords" -}}
ours: [{{ .Values.driverName }}/memory, {{ .Values.driverName }}/compute]
kai: [gpu-fraction, gpu-memory, gpu-fraction-num-devices]
hamiAnnotations: [nvidia.com/use-gputype, nvidia.com/nouse-gputype, nvidia.com/use-gpuuuid, nvidia.com/nouse-gpuuuid, nvidia.com/vgpu-mode]
hami: [nvidia.com/gpumem, nvidia.com/gpumem-percentage, nvidia.com/gpucores, nvidia.com/priority]
gpu: {{ .Values.deviceClasses.gpu.extendedResourceName | default "nvidia.com/gpu" }}
{{- end }}

{{/* The pods of two policies. One changes a pod, and the other denies it if it cannot be changed. */}}
{{- define "gpu-dra-driver.podShareMatch" -}}
{{- $w := include "gpu-dra-driver.podShareWords" . | fromYaml }}
matchConstraints:
  matchPolicy: Equivalent
  namespaceSelector:
    matchLabels:
      {{ .Values.driverName }}/pod-shares: "true"
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: asks-for-a-share
    expression: >-
      object.metadata.?annotations.orValue({}).exists(a, a in {{ concat $w.ours $w.kai | toJson }}) ||
      (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
      [c.?resources.?limits.orValue({}), c.?resources.?requests.orValue({})].exists(l, l.exists(r, r in {{ $w.hami | toJson }} ||
      r == '{{ $w.gpu }}' && object.metadata.?annotations.orValue({}).exists(a, a in {{ $w.hamiAnnotations | toJson }}))))
  {{- include "gpu-dra-driver.installed" . | nindent 2 }}
{{- end }}

{{/* The variables of both policies. */}}
{{- define "gpu-dra-driver.podShareVariables" -}}
{{- $driver := .Values.driverName }}
{{- $w := include "gpu-dra-driver.podShareWords" . | fromYaml }}
- name: containers
  expression: object.spec.containers + object.spec.?initContainers.orValue([])
- name: all
  expression: lists.range(variables.containers.size())
- name: annotations
  expression: object.metadata.?annotations.orValue({})
- name: ours
  expression: variables.annotations.exists(a, a in {{ $w.ours | toJson }})
- name: kai
  expression: variables.annotations.exists(a, a in {{ $w.kai | toJson }})
# The limits of each container as text. An API server writes 3000 as 3k, and a
# comparison with 1e999999999 does not end.
- name: gpus
  expression: variables.containers.map(c, string(c.?resources.?limits[?'{{ $w.gpu }}'].orValue('')))
- name: amounts
  expression: >-
    variables.containers.map(c, {{ initial $w.hami | toJson }}.map(r, string(c.?resources.?limits[?r].orValue(''))))
- name: numbers
  expression: >-
    variables.amounts.map(c, c.map(a, a == '' ? 0 : a.matches('^[0-9]{1,9}([kM]|[KM]i)?$') ? quantity(a).asInteger() : -1))
- name: hami
  expression: variables.amounts.exists(c, c.exists(a, a != ''))
# HAMi's containers that have whole GPUs: all memory, or all of the SMs, which it gives to one container only.
- name: whole
  expression: >-
    variables.all.map(i, variables.amounts[i].exists(a, a != '') && [variables.numbers[i]].exists(n,
    n[2] >= 100 || n[0] == 0 && n[1] in [0, 100] && n[2] == 0))
# Memory in MiB, and thousandths of it.
- name: memory
  expression: >-
    [variables.annotations[?'{{ $driver }}/memory'].orValue('')].map(m,
    m.matches('^([0-9]{1,15}|[0-9]{1,6}([.][0-9]{1,3})?([KMGT]i|[kMGT]))$') ?
    int(quantity(m).asApproximateFloat() / 1048576.0 + 0.999) : 0)[0]
- name: fraction
  expression: >-
    [variables.annotations[?'gpu-fraction'].orValue('')].map(f,
    f.matches('^0?[.][0-9]{1,3}0*$') ? int(double(f) * 1000.0 + 0.5) : 0)[0]
# The containers that annotations are about.
- name: named
  expression: >-
    variables.kai ? [variables.annotations[?'gpu-fraction-container-name'].orValue(object.spec.containers[0].name)].map(name,
    variables.containers.map(c, c.name == name))[0] :
    variables.all.map(i, variables.gpus[i] != '' ||
    i == 0 && object.spec.containers.size() == 1 && variables.gpus.all(g, g == ''))
# The template for each container, or '' for none. Its name has all of its content.
- name: shares
  expression: >-
    variables.all.map(i, variables.kai || variables.ours ? (!variables.named[i] ? '' : variables.ours ?
    'gpu-share-' + string(variables.memory) + 'mi' +
    variables.annotations[?'{{ $driver }}/compute'].optMap(c, '-compute-' + c).orValue('') :
    'gpu-share-' + variables.annotations[?'gpu-memory'].optMap(m, m + 'mi').orValue(string(variables.fraction) + 'm')) :
    variables.whole[i] || variables.amounts[i].all(a, a == '') ? '' : [variables.numbers[i]].map(n,
    'gpu-share-' + (n[0] > 0 ? string(n[0]) + 'mi' : string(n[1] == 0 ? 1000 : n[1] * 10) + 'm') +
    (n[2] > 0 ? '-compute-' + string(n[2]) : ''))[0])
- name: changeable
  expression: >-
    {{- range $i, $check := include "gpu-dra-driver.podShareChecks" . | fromYamlArray }}
    {{ if $i }}&& {{ end }}({{ $check.allows }})
    {{- end }}
{{- end }}

{{/* Each condition for a change, and its sentence. */}}
{{- define "gpu-dra-driver.podShareChecks" -}}
{{- $driver := .Values.driverName }}
{{- $w := include "gpu-dra-driver.podShareWords" . | fromYaml }}
{{- $request := printf "requests: [{name: gpu, exactly: {deviceClassName: %s, " $driver }}
{{- $several := printf "by MPS a container has a share of one GPU only; by time slicing this claim has shares of several: %scount: ' + %%s + ', capacity: {requests: {memory: ' + [%%s.find('[0-9]+mi').replace('mi', 'Mi')].map(m, m == '' ? 'MEMORY' : m)[0] + '}}}}], config: [{opaque: {driver: %s, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing}}}}]" $request $driver }}
{{- with .Values.policies.fractionNamespaceLabel }}
- allows: namespaceObject.metadata.?labels[?'{{ . }}'].orValue('') == 'true'
  says: >-
    'shares of a GPU are for namespaces with the label {{ . }}: "true"; ask for a whole GPU or a MIG partition, or have an administrator label the namespace'
{{- end }}
- allows: >-
    [variables.ours, variables.kai, variables.hami].filter(form, form).size() <= 1
  says: >-
    'this pod asks for a share of a GPU in two ways; keep {{ first $w.ours }}, the annotations of KAI or the limits of HAMi'
- allows: >-
    !variables.annotations.exists(a, a in {{ initial $w.hamiAnnotations | toJson }}) &&
    variables.annotations[?'{{ last $w.hamiAnnotations }}'].orValue('') != 'mig'
  says: >-
    'an annotation of HAMi chooses GPUs, which only a claim can do; remove it, or write {{ $request }}selectors: [{cel: {expression: \'device.attributes["{{ $driver }}"].productName.matches("A100|V100")\'}}]}}]; MIG partitions have the classes mig.{{ trimPrefix "gpu." $driver }}'
- allows: >-
    !variables.containers.exists(c, '{{ last $w.hami }}' in c.?resources.?limits.orValue({}))
  says: >-
    '{{ last $w.hami }} has no counterpart, because processes on one GPU have equal turns; remove it'
- allows: >-
    !variables.ours || variables.memory >= 16
  says: >-
    'a share needs the annotation {{ first $w.ours }} with an amount of memory of 16Mi or more, such as "10Gi"; the claim for it is {{ $request }}capacity: {requests: {memory: 10Gi}}}}]'
- allows: >-
    !variables.ours || variables.annotations[?'{{ last $w.ours }}'].orValue('1').matches('^([1-9][0-9]?|100)$')
  says: >-
    'the annotation {{ last $w.ours }} is a whole number of percent of the SMs of a GPU, from "1" to "100"'
- allows: >-
    !variables.ours || variables.named.exists(n, n)
  says: >-
    'this pod has ' + string(object.spec.containers.size()) + ' containers; give the limit {{ $w.gpu }}: 1 to each one that needs a share of its own'
- allows: >-
    variables.numbers.all(n, n.all(a, a >= 0) && (n[0] == 0 || n[0] >= 16) && n[0] <= 999999999 && n[1] <= 100 && n[2] <= 100)
  says: >-
    '{{ index $w.hami 0 }} is a whole number of MiB from 16, and {{ index $w.hami 1 }} and {{ index $w.hami 2 }} are whole numbers up to 100'
- allows: >-
    variables.numbers.all(n, n[0] == 0 || n[1] == 0)
  says: >-
    'a container has {{ index $w.hami 0 }} and {{ index $w.hami 1 }}; keep one of them'
- allows: >-
    variables.kai || variables.all.all(i, variables.shares[i] == '' || variables.gpus[i] in ['', '1'])
  says: >-
    variables.all.filter(i, variables.shares[i] != '' && !(variables.gpus[i] in ['', '1'])).map(i, '{{ printf $several "variables.gpus[i]" "variables.shares[i]" }}')[0]
- allows: >-
    !variables.kai || ('gpu-fraction' in variables.annotations) != ('gpu-memory' in variables.annotations)
  says: >-
    'the annotations of KAI need gpu-fraction or gpu-memory, and not both'
- allows: >-
    !variables.kai || 'gpu-memory' in variables.annotations || variables.fraction > 0
  says: >-
    'the annotation gpu-fraction is a number above 0 and below 1 with up to three digits, such as "0.5"'
- allows: >-
    !variables.kai || variables.annotations[?'gpu-memory'].orValue('16').matches('^(1[6-9]|[2-9][0-9]|[1-9][0-9]{2,8})$')
  says: >-
    'the annotation gpu-memory is a whole number of MiB, from "16"'
- allows: >-
    !variables.kai || variables.annotations[?'gpu-fraction-num-devices'].orValue('1') == '1'
  says: >-
    '{{ printf $several "variables.annotations['gpu-fraction-num-devices']" "variables.annotations[?'gpu-memory'].optMap(m, m + 'mi').orValue('')" }}'
- allows: >-
    !variables.kai || variables.gpus.all(g, g == '')
  says: >-
    'with the annotations of KAI, no container has the limit {{ $w.gpu }}; remove one of both'
- allows: >-
    !variables.kai || variables.named.exists(n, n)
  says: >-
    'no container of this pod has the name in the annotation gpu-fraction-container-name'
- allows: >-
    object.spec.?nodeName.orValue('') == ''
  says: >-
    'this pod has spec.nodeName, so no scheduler allocates its share; instead of nodeName, write nodeSelector {kubernetes.io/hostname: ' + object.spec.nodeName + '}'
- allows: >-
    !object.spec.?resourceClaims.orValue([]).exists(c, c.name.startsWith('gpu-share-'))
  says: >-
    'the names gpu-share-… in spec.resourceClaims are for the shares of this pod; rename its own'
{{- end }}

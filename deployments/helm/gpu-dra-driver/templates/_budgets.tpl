{{/* The properties of an amount in the schema of budgets: of limits, or of the
controller's numbers. */}}
{{- define "gpu-dra-driver.budgetAmount" -}}
gpus:
  description: >-
    Number of GPUs, in thousandths at the most. A group counts as its GPUs, a
    partition as its part of the memory slices of its GPU, and a share as the
    larger of its parts of memory and compute.
  x-kubernetes-int-or-string: true
  anyOf: [{type: integer}, {type: string}]
  minimum: 0
  maximum: 1000000
  maxLength: 16
  pattern: '^[0-9]{1,7}(\.[0-9]{1,3}|m)?$'
memory:
  description: Memory of the devices, in bytes, such as 640Gi.
  x-kubernetes-int-or-string: true
  anyOf: [{type: integer}, {type: string}]
  minimum: 0
  maxLength: 24
  pattern: '^[0-9]{1,18}$|^[0-9]{1,9}(\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)$|^[0-9]{1,3}(\.[0-9]{1,3})?(P|Pi)$'
{{- end }}

{{- define "gpu-dra-driver.budgetModels" -}}
models:
  description: Amounts by model.
  type: array
  maxItems: 64
  x-kubernetes-list-type: map
  x-kubernetes-list-map-keys: [productName]
  items:
    type: object
    required: [productName]
    properties:
      productName:
        description: Attribute productName of the devices, such as NVIDIA H100 80GB HBM3.
        type: string
        minLength: 1
        maxLength: 64
      {{- include . dict | nindent 6 }}
{{- end }}

{{- define "gpu-dra-driver.budgetNumber" -}}
gpus:
  x-kubernetes-int-or-string: true
  anyOf: [{type: integer}, {type: string}]
  maxLength: 32
memory:
  x-kubernetes-int-or-string: true
  anyOf: [{type: integer}, {type: string}]
  maxLength: 32
{{- end }}

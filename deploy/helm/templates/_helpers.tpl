{{- /* What the names of all objects begin with: "goodput" for a release of that name. Its end leaves room for the longest
suffix within the 63 characters of a label. */ -}}
{{- define "goodput.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains $chart .Release.Name }}{{ .Release.Name | trunc 32 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $chart | trunc 32 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "goodput.image" -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}

{{- /* The three below take a dict: root, component (the suffix of its names), values (the component's). */ -}}
{{- define "goodput.serviceAccountName" -}}
{{- $own := printf "%s-%s" (include "goodput.fullname" .root) .component }}
{{- .values.serviceAccount.name | default (ternary $own "default" .values.serviceAccount.create) }}
{{- end }}

{{- define "goodput.serviceAccount" -}}
{{- if .values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "goodput.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- if .partOf }}
  labels:
    app.kubernetes.io/part-of: goodput
  {{- end }}
  {{- with .values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
{{- end }}
{{- end }}

{{- /* Metadata of a pod; the label that selects it wins over the user's. */ -}}
{{- define "goodput.podMetadata" -}}
{{- $name := printf "%s-%s" (include "goodput.fullname" .root) .component }}
labels: {{- toYaml (merge (dict "app.kubernetes.io/name" $name) .values.podLabels) | nindent 2 }}
{{- with .values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Where a pod runs and as whom, but for its affinity. `priority`: the class that is used without one of the user's. */ -}}
{{- define "goodput.pod" -}}
serviceAccountName: {{ include "goodput.serviceAccountName" . }}
{{- with .values.priorityClassName | default .priority }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with merge (deepCopy .values.nodeSelector) (.nodeSelector | default dict) }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

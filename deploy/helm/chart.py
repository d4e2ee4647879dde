"""Write the Helm chart: the objects of deploy/kubernetes as templates, with the rules and dashboards beside them.

Each object's text is that which kustomize reads; an entry of EDITS that does not occur exactly once ends the program.
Needs Python alone.

    python3 deploy/helm/chart.py [FOLDER]     # default: dist/chart/goodput; removed first
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPONENTS = KUBERNETES / "components"
PART_OF = "  labels:\n    app.kubernetes.io/part-of: goodput\n"
MONITOR_LABELS = """\
  {{- with .Values.prometheusOperator.labels }}
  labels: {{- toYaml . | nindent 4 }}
  {{- end }}
"""
URLS = ",".join(f"tls://goodput-nats-{at}.goodput-nats.goodput.svc:4222" for at in range(3))
PULL_SECRETS = """\
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
"""
CLUSTER_KINDS = {"PriorityClass", "ClusterRole", "ClusterRoleBinding", "PersistentVolume"}

# Template -> (text of the source, what stands in its place), in any order.
EDITS: dict[str, list[tuple[str, str]]] = {
    "node.yaml": [
        (
            "--aggregator=https://goodput-aggregator.goodput.svc:9471\n",
            "--aggregator=https://goodput-{{ if .Values.stream.enabled }}ingest{{ else }}aggregator{{ end }}.goodput.svc:9471\n",
        ),
        (
            "      serviceAccountName: goodput-node\n",
            """\
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if .Values.nvidia }}
      runtimeClassName: nvidia
      nodeSelector:
        nvidia.com/gpu.present: "true"
      {{- end }}
      serviceAccountName: goodput-node
""",
        ),
        (
            '          command: [sh, -c, "chmod 1777 /pages && chown 65532:65532 /pages"]\n',
            """\
          {{- if or .Values.stackSamples .Values.hostFiles .Values.kernelLog }}
          command: [sh, -c, "chmod 1777 /pages && chown 0:0 /pages && rm -f /pages/.agent.lock"]
          {{- else }}
          command: [sh, -c, "chmod 1777 /pages && chown 65532:65532 /pages"]
          {{- end }}
""",
        ),
        (
            "            - --tls-key=/etc/goodput/tls/tls.key\n          env:\n",
            """\
            - --tls-key=/etc/goodput/tls/tls.key
            {{- if .Values.nvidia }}
            - --gpu-driver=nvml
            {{- end }}
            {{- if .Values.otlp.enabled }}
            - --otlp={{ .Values.otlp.url }}
            {{- end }}
            {{- if .Values.hostFiles }}
            - --rootfs=/host/root
            {{- end }}
            {{- with .Values.node.args }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          env:
            {{- if .Values.nvidia }}
            - name: NVIDIA_VISIBLE_DEVICES
              value: all
            - name: NVIDIA_DRIVER_CAPABILITIES
              value: utility
            {{- end }}
""",
        ),
        (
            """\
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          resources:
            requests: {cpu: 20m, memory: 96Mi}
            limits: {memory: 512Mi}
""",
            """\
          securityContext:
            {{- if .Values.kernelLog }}
            privileged: true
            {{- end }}
            allowPrivilegeEscalation: {{ .Values.kernelLog }}
            readOnlyRootFilesystem: true
            {{- if or .Values.stackSamples .Values.hostFiles .Values.kernelLog }}
            runAsNonRoot: false
            runAsUser: 0
            {{- end }}
            capabilities:
              drop: [ALL]
              {{- if .Values.stackSamples }}
              add: [SYS_PTRACE]
              {{- end }}
          resources: {{- toYaml .Values.node.resources | nindent 12 }}
""",
        ),
        (
            "            - name: tmp\n              mountPath: /tmp\n",
            """\
            - name: tmp
              mountPath: /tmp
            {{- if .Values.hostFiles }}
            - name: root
              mountPath: /host/root
              readOnly: true
              mountPropagation: HostToContainer
            {{- end }}
""",
        ),
        (
            "            medium: Memory\n            sizeLimit: 16Mi\n",
            """\
            medium: Memory
            sizeLimit: 16Mi
        {{- if .Values.hostFiles }}
        - name: root
          hostPath:
            path: /
            type: Directory
        {{- end }}
""",
        ),
    ],
    "aggregator.yaml": [
        (
            "      serviceAccountName: goodput-aggregator\n",
            PULL_SECRETS
            + """\
      {{- if .Values.stream.enabled }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    app.kubernetes.io/name: goodput-aggregator
      {{- end }}
      serviceAccountName: goodput-aggregator
""",
        ),
        (
            "  replicas: 1 # One writer to one SQLite ledger. Agents keep what they could not push while it is replaced.\n",
            "  replicas: {{ if .Values.stream.enabled }}{{ .Values.stream.aggregators }}{{ else }}1{{ end }}\n",
        ),
        (
            "            - --tls-key=/etc/goodput/tls/tls.key\n",
            """\
            - --tls-key=/etc/goodput/tls/tls.key
            {{- if .Values.postgresql.enabled }}
            - --ledger={{ .Values.postgresql.url }}
            {{- end }}
            {{- if .Values.stream.enabled }}
            - --role=aggregate
            - --stream=@URLS@
            - --stream-credentials=/etc/goodput/stream/login
            - --stream-ca=/etc/goodput/stream-tls/ca.crt
            {{- with .Values.stream.args }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- end }}
            {{- if .Values.otlp.enabled }}
            - --otlp={{ .Values.otlp.url }}
            {{- end }}
            {{- with .Values.aggregator.args }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- if .Values.postgresql.enabled }}
          env:
            - name: PGPASSWORD
              valueFrom:
                secretKeyRef:
                  name: goodput-postgresql
                  key: password
            - name: PGSSLMODE
              value: verify-full
            - name: PGSSLROOTCERT
              value: /etc/goodput/postgresql/ca.crt
          {{- end }}
""",
        ),
        (
            """\
          resources:
            requests: {cpu: 100m, memory: 256Mi}
            # It keeps itself below 80 % of the limit of memory (goodput serve --memory).
            limits: {cpu: "2", memory: 2Gi}
""",
            """\
          # It keeps itself below 80 % of the limit of memory (goodput serve --memory).
          resources: {{- toYaml .Values.aggregator.resources | nindent 12 }}
""",
        ),
        (
            """\
            - name: ledger
              mountPath: /var/lib/goodput
""",
            """\
            {{- if .Values.postgresql.enabled }}
            - name: postgresql
              mountPath: /etc/goodput/postgresql
              readOnly: true
            {{- else }}
            - name: ledger
              mountPath: /var/lib/goodput
            {{- end }}
            {{- if .Values.stream.enabled }}
            - name: stream
              mountPath: /etc/goodput/stream
              readOnly: true
            - name: stream-tls
              mountPath: /etc/goodput/stream-tls
              readOnly: true
            {{- end }}
""",
        ),
        (
            "        - name: tmp\n          emptyDir:\n",
            """\
        {{- if .Values.postgresql.enabled }}
        - name: postgresql
          secret:
            secretName: goodput-postgresql
            defaultMode: 0440
            items:
              - key: ca.crt
                path: ca.crt
        {{- end }}
        {{- if .Values.stream.enabled }}
        - name: stream
          secret:
            secretName: goodput-nats
            defaultMode: 0440
            items:
              - key: login
                path: login
        - name: stream-tls
          secret:
            secretName: goodput-nats-tls
            defaultMode: 0440
            items:
              - key: ca.crt
                path: ca.crt
        {{- end }}
        - name: tmp
          emptyDir:
""",
        ),
        (
            """\
  volumeClaimTemplates:
    - metadata:
        name: ledger
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests:
            storage: 20Gi
""",
            """\
  {{- if not .Values.postgresql.enabled }}
  volumeClaimTemplates:
    - metadata:
        name: ledger
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .Values.aggregator.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .Values.aggregator.storage.size }}
  {{- end }}
""",
        ),
    ],
    "network-policy.yaml": [
        (
            "    matchLabels:\n      app.kubernetes.io/name: goodput-aggregator\n",
            """\
    {{- if .Values.stream.enabled }}
    matchExpressions:
      - {key: app.kubernetes.io/name, operator: In, values: [goodput-aggregator, goodput-ingest]}
    {{- else }}
    matchLabels:
      app.kubernetes.io/name: goodput-aggregator
    {{- end }}
""",
        ),
        (
            "          port: 9471\n  egress: []\n",
            """\
          port: 9471
      {{- if or .Values.networkPolicy.nodes .Values.networkPolicy.namespaces }}
      from:
        {{- range .Values.networkPolicy.nodes }}
        - ipBlock:
            cidr: {{ . }}
        {{- end }}
        {{- range .Values.networkPolicy.namespaces }}
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ . }}
        {{- end }}
      {{- end }}
  egress: {{- toYaml .Values.networkPolicy.egress | nindent 4 }}
""",
        ),
    ],
    "monitors.yaml": [
        (
            """\
      interval: 5s
      scrapeTimeout: 4s
      # Series name the pod and container of a rank; those of the agent itself must not take their place.
""",
            """\
      {{- if .Values.prometheusOperator.largeCluster }}
      interval: 30s
      scrapeTimeout: 10s
      metricRelabelings:
        - sourceLabels: [__name__]
          regex: @LARGE_CLUSTER@
          action: drop
      {{- else }}
      interval: 5s
      scrapeTimeout: 4s
      {{- end }}
      # Series name the pod and container of a rank; those of the agent itself must not take their place.
""",
        ),
    ],
    "ingest.yaml": [
        ("  replicas: 2\n", "  replicas: {{ .Values.stream.ingestWorkers }}\n"),
        (
            "      serviceAccountName: goodput-ingest\n",
            PULL_SECRETS + "      serviceAccountName: goodput-ingest\n",
        ),
        (
            "            - --tls-key=/etc/goodput/tls/tls.key\n",
            """\
            - --tls-key=/etc/goodput/tls/tls.key
            {{- with .Values.stream.args }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
""",
        ),
    ],
    "nats.yaml": [
        (
            "      serviceAccountName: goodput-nats\n",
            PULL_SECRETS + "      serviceAccountName: goodput-nats\n",
        ),
        (
            "        accessModes: [ReadWriteOnce]\n        resources:\n          requests:\n            storage: 20Gi\n",
            """\
        accessModes: [ReadWriteOnce]
        {{- with .Values.stream.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .Values.stream.storage.size }}
""",
        ),
        (
            "      max_file_store: 16GB #",
            "      max_file_store: {{ .Values.stream.storage.usable }} #",
        ),
        ("image: nats:2.11.4-alpine\n", 'image: {{ include "goodput.image" .Values.images.nats }}\n'),
    ],
    "egress.yaml": [
        (
            "              kubernetes.io/metadata.name: postgresql\n",
            "              kubernetes.io/metadata.name: {{ .Values.postgresql.namespace }}\n",
        ),
    ],
    "egress-otlp.yaml": [
        (
            "              kubernetes.io/metadata.name: monitoring\n",
            "              kubernetes.io/metadata.name: {{ .Values.otlp.namespace }}\n",
        ),
        ("          port: 4318\n", "          port: {{ .Values.otlp.port }}\n"),
    ],
}
CONDITIONS = {
    "egress.yaml": "postgresql.enabled",
    "egress-otlp.yaml": "otlp.enabled",
    "ended-jobs.yaml": "endedJobs",
    **dict.fromkeys(("ingest.yaml", "nats.yaml", "stream-policy.yaml"), "stream.enabled"),
    "monitors.yaml": "prometheusOperator.enabled",
}


def listed(path: Path, key: str) -> list[str]:
    """The names under a top-level `key:` of a YAML file whose list has one name in each line."""
    found = re.search(rf"^{key}:\n((?:\s+-.*\n)+)", path.read_text(encoding="utf-8"), re.M)
    if found is None:
        raise SystemExit(f"{path} has no {key}")
    return re.findall(r"-\s+(\S+)", found[1])


def edited(name: str, text: str) -> str:
    """The source with its EDITS. Raises SystemExit where one does not fit."""
    for old, new in EDITS.get(name, ()):
        if text.count(old) != 1:
            raise SystemExit(f"{name}: an edit of {Path(__file__).name} fits {text.count(old)} times:\n{old}")
        text = text.replace(old, new)
    text = re.sub(
        r"(?m)image: goodput-(node|aggregator)(?::\S+)?$",
        r'image: {{ include "goodput.image" .Values.images.\1 }}',
        text,
    )
    large = (COMPONENTS / "large-cluster" / "kustomization.yaml").read_text(encoding="utf-8")
    dropped = re.findall(r"(?m)^ +regex: (\S+)$", large)
    text = text.replace("@LARGE_CLUSTER@", "".join(dropped)).replace("@URLS@", URLS)
    text = re.sub(r"(?m)^(    namespace: )goodput$", r"\1{{ .Release.Namespace }}", text)  # of a subject
    return text.replace(".goodput.svc", ".{{ .Release.Namespace }}.svc")


def placed(document: str, labels: str) -> str:
    """An object in the release's namespace with `labels`, a block that goes before the labels it has."""
    kind = re.search(r"(?m)^kind: (\w+)", document)
    own = r"(?:  labels:\n)?" if labels else ""
    head = re.search(rf"(?m)^(metadata:\n  name: .*\n)(?:  namespace: .*\n)?{own}", document)
    if kind is None or head is None:
        raise SystemExit(
            f"an object without a kind, or whose metadata do not begin with its name:\n{document}"
        )
    namespace = "" if kind[1] in CLUSTER_KINDS else "  namespace: {{ .Release.Namespace }}\n"
    return f"{document[: head.start()]}{head[1]}{namespace}{labels}{document[head.end() :]}"


def template(path: Path, labels: str) -> str:
    """A template of the objects in `path`, under the condition of its file name."""
    text = edited(path.name, path.read_text(encoding="utf-8"))
    text = "---\n".join(placed(document, labels) for document in re.split(r"(?m)^---\n", text))
    condition = CONDITIONS.get(path.name)
    return f"{{{{- if .Values.{condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def write(folder: Path) -> None:
    """The chart, in place of what `folder` had."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "templates").mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.schema.json"):
        shutil.copy(HERE / name, folder)
    for path in (HERE / "templates").iterdir():
        shutil.copy(path, folder / "templates")
    base = [
        KUBERNETES / "base" / name for name in listed(KUBERNETES / "base" / "kustomization.yaml", "resources")
    ]
    sources = [(path, PART_OF) for path in base if path.name != "namespace.yaml"]
    sources.append((COMPONENTS / "postgresql" / "egress.yaml", ""))
    sources.append((COMPONENTS / "otlp" / "egress-otlp.yaml", ""))
    sources.append((COMPONENTS / "ended-jobs" / "ended-jobs.yaml", ""))
    stream = COMPONENTS / "stream"
    sources += [(stream / name, "") for name in listed(stream / "kustomization.yaml", "resources")]
    sources.append((COMPONENTS / "prometheus-operator" / "monitors.yaml", MONITOR_LABELS))
    for path, labels in sources:
        (folder / "templates" / path.name).write_text(template(path, labels), encoding="utf-8")
    for name in listed(ROOT / "deploy" / "prometheus" / "prometheus.yml", "rule_files"):
        (folder / "rules").mkdir(exist_ok=True)
        shutil.copy(ROOT / "deploy" / "prometheus" / name, folder / "rules")
    shutil.copy(COMPONENTS / "ended-jobs" / "ended_jobs.py", folder)
    (folder / "dashboards").mkdir()
    for path in (ROOT / "dashboards" / "generated").glob("*.json"):
        shutil.copy(path, folder / "dashboards")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "chart" / "goodput")

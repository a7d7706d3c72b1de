#!/usr/bin/env bash
# Takes a Kubernetes cluster in as a cell: checks it, installs what all cells have, applies the cell.
# Command:  infra/onboard.sh CELL           (a folder below infra/cells; kubectl's current context)
#           DRY_RUN=1 infra/onboard.sh CELL (says what it would run)
# Needs:    kubectl, helm; rights of an administrator; nodes with GPUs that carry the labels
#           avatar-v/supply (reserved, on-demand or spot), avatar-v/block and avatar-v/rack.
# Again:    the same command; it changes what differs. The namespace monitoring is its own.
set -euo pipefail
cd "$(dirname "$0")"

cell=${1:?a cell, such as example}
run=${DRY_RUN:+echo}
if [[ ! -f cells/$cell/kustomization.yaml ]]; then
  echo "onboard.sh: there is no infra/cells/$cell/kustomization.yaml" >&2
  exit 2
fi

chart() { # NAME NAMESPACE CHART VERSION [--set …]
  $run helm upgrade --install "$1" "$3" --version "$4" --namespace "$2" --create-namespace --wait "${@:5}"
}

rules() { # the rules of rules.yaml as the operator of Prometheus takes them
  printf '%s\n' 'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' \
    'metadata: {name: avatar-v, namespace: monitoring, labels: {release: prometheus}}' 'spec:'
  sed 's/^/  /' prometheus/rules.yaml
}

# 1. Is it a cell? Every node with GPUs says how it is paid for and where it stands.
for label in supply block rack; do
  if [[ -z ${DRY_RUN:-} ]]; then
    lacking=$(kubectl get nodes --selector "nvidia.com/gpu.present=true,!avatar-v/$label" --output name)
    [[ -z $lacking ]] || { echo "onboard.sh: no label avatar-v/$label on $lacking" >&2; exit 1; }
  fi
done

# 2. What all cells have.
labels='pods=[avatar-v/run\,avatar-v/team]\,nodes=[avatar-v/supply]'
chart gpu-operator gpu-operator gpu-operator v25.3.4 --repo https://helm.ngc.nvidia.com/nvidia \
  --set dcgmExporter.config.create=true --set dcgmExporter.config.name=avatar-v-counters \
  --set-file dcgmExporter.config.data=prometheus/counters.csv --set dcgmExporter.serviceMonitor.enabled=true
chart prometheus monitoring oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack 77.5.0 \
  --set kube-state-metrics.metricLabelsAllowlist[0]="$labels" \
  --set prometheus-node-exporter.prometheus.monitor.relabelings[0].sourceLabels[0]=__meta_kubernetes_pod_node_name \
  --set prometheus-node-exporter.prometheus.monitor.relabelings[0].targetLabel=node
chart kueue kueue-system oci://registry.k8s.io/kueue/charts/kueue 0.15.0

# 3. The cell: queues and governance, alerts and dashboards.
$run kubectl apply --server-side --kustomize "cells/$cell"
if [[ -z ${DRY_RUN:-} ]]; then rules | kubectl apply --server-side --filename -; else rules; fi
for board in grafana/*.json; do
  name=avatar-v-$(basename "$board" .json)
  if [[ -n ${DRY_RUN:-} ]]; then echo "kubectl create configmap $name"; continue; fi
  kubectl create configmap "$name" --namespace monitoring --from-file "$board" --dry-run=client \
    --output yaml | kubectl label --local --filename - grafana_dashboard=1 --output yaml |
    kubectl apply --server-side --filename -
done

# 4. Does it work? NVIDIA's own diagnosis on every node, then all queues active.
$run kubectl wait --for=condition=Active clusterqueue/inference clusterqueue/training clusterqueue/data --timeout 5m
$run kubectl --namespace gpu-operator wait --for=condition=Ready pod --selector app=nvidia-operator-validator --timeout 15m
echo "$cell: taken in"

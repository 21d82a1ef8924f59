#!/usr/bin/env bash
# Builds helm and kustomize into the given folder, from the Go modules that go.mod names. The first build on a
# machine takes some minutes of two cores, later ones seconds (Go's build cache).
set -euo pipefail
out=$(realpath -m "${1:?usage: build.sh OUTPUT_FOLDER}")
cd "$(dirname "$0")"
mkdir -p "$out"
helm=helm.sh/helm/v3
version=$(go list -m -f '{{.Version}}' "$helm")
minor=$(go list -m -f '{{.Version}}' k8s.io/client-go); minor=${minor#v0.}; minor=${minor%%.*}
flags="-s -w -X $helm/internal/version.version=$version"
# The Kubernetes that charts are rendered for where helm asks no server, as in helm's own builds.
for package in pkg/lint/rules pkg/chartutil; do
  flags+=" -X $helm/$package.k8sVersionMajor=1 -X $helm/$package.k8sVersionMinor=$minor"
done
exec go build -trimpath -ldflags "$flags" -o "$out/" tool

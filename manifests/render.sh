#!/usr/bin/env bash
# render.sh: writes manifests/rendered/*.yaml, which the binary carries and tests compare, and the
# copies that the Helm chart takes its rules, rights, alerts and dashboard from.
#
# Uses $KUBECTL, or the kubectl on PATH.
set -euo pipefail

cd "$(dirname "$0")"
kubectl=${KUBECTL:-kubectl}
if ! command -v "$kubectl" > /dev/null; then
	echo "render.sh: '$kubectl' not found: install kubectl or set KUBECTL to one" >&2
	exit 1
fi
mkdir -p rendered chart/files
for folder in base overlays/*; do
	target=rendered/$(basename "$folder").yaml
	# Only a complete result takes the place of the old one.
	"$kubectl" kustomize "$folder" > "$target.new"
	mv "$target.new" "$target"
done
# A chart can only read what lies in it.
cp rendered/cert-manager.yaml chart/files/shipped.yaml
cp monitoring/alerts.yaml monitoring/dashboard.json chart/files/

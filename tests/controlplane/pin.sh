#!/usr/bin/env bash
# pin.sh kube|etcd|capi-v1.9.4|capi-v1.14|helm|promtool|containerd|cni VERSION: writes that folder's
# go.mod and go.sum anew for VERSION. Only needed to move to another version; the results are committed.
#
# A wrapper module does not inherit the replace directives of the module it wraps, so they
# are copied. Kubernetes asks for its own libraries as v0.0.0 and replaces them by folders
# of its repository; here they become the published v0.X.Y of Kubernetes v1.X.Y.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
folder=$1 version=$2
cd "$(dirname "$0")/$folder"

tools=()
case $folder in
kube) upstream=k8s.io/kubernetes ;;
etcd) upstream=go.etcd.io/etcd/server/v3 ;;
capi-v1.9.4)
	upstream=sigs.k8s.io/cluster-api
	tools=("$upstream" "$upstream/cmd/clusterctl")
	;;
capi-v1.14)
	upstream=sigs.k8s.io/cluster-api
	tools=("$upstream/core" "$upstream/cmd/clusterctl")
	;;
helm)
	upstream=helm.sh/helm/v3
	tools=("$upstream/cmd/helm")
	;;
promtool)
	upstream=github.com/prometheus/prometheus
	tools=("$upstream/cmd/promtool")
	export GOFLAGS=-tags=remove_all_sd # as build.sh does: without the clients of all clouds
	;;
containerd)
	upstream=github.com/containerd/containerd/v2
	tools=("$upstream/cmd/containerd" "$upstream/cmd/containerd-shim-runc-v2" "$upstream/cmd/ctr")
	export GOFLAGS=-tags=no_btrfs,no_devmapper,no_zfs # as build.sh does: only what every system has
	;;
cni)
	upstream=github.com/containernetworking/plugins
	tools=("$upstream/plugins/main/loopback" "$upstream/plugins/main/ptp"
		"$upstream/plugins/ipam/host-local" "$upstream/plugins/meta/portmap")
	;;
*) echo "pin.sh: no wrapper module $folder" >&2; exit 2 ;;
esac

upstream_mod=$(go mod download -json "$upstream@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
rm -f go.mod go.sum
go mod init "controlplane/$folder" 2> /dev/null
go mod edit -go "$(sed -n 's/^go //p' "$upstream_mod")" -require "$upstream@$version"
sed -n 's/^godebug //p; /^godebug (/,/^)/p' "$upstream_mod" | { grep -oE '[a-z0-9]+=[a-z0-9.]+' || true; } |
	while read -r setting; do go mod edit -godebug "$setting"; done
if [ "$folder" = kube ]; then
	sed -n 's/^[[:space:]]*\(k8s\.io\/[a-z-]*\) v0\.0\.0\( .*\)\{0,1\}$/\1/p' "$upstream_mod" | sort -u |
		while read -r library; do
			go mod edit -require "$library@v0.0.0" -replace "$library=$library@v0.${version#v1.}"
		done
fi
if [ "$folder" = capi-v1.14 ]; then
	go mod edit -require "$upstream/api@$version" # there a replace by a folder, too
fi
for tool in "${tools[@]}"; do go mod edit -tool "$tool"; done
# Not `go mod tidy`: that also fetches what the tests of every dependency need.
[ ${#tools[@]} -gt 0 ] && packages=tool || packages=.
GOFLAGS="${GOFLAGS:-} -mod=mod" go list -deps "$packages" > /dev/null
GOFLAGS="${GOFLAGS:-} -mod=readonly" go list -deps "$packages" > /dev/null

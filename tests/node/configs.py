"""What the parts of the node are started with. What is not said here is a part's own default."""

import json

import node

ETCD_PORT = 2379


def write(folder, state):
    """The configuration files. JSON is YAML, too."""
    for name, content in {
        "kubelet.yaml": kubelet_file(folder, state),
        "proxy.yaml": proxy_file(folder),
    }.items():
        (folder.conf / name).write_text(json.dumps(content, indent=1))
    (folder.conf / "containerd.toml").write_text(containerd_file(state))
    with open("/run/cni/net.d/10-node.conflist", "w") as file:
        json.dump(network(), file)


def network():
    """Each pod has a pair of links to the node, with a route: no bridge, so what a pod sends to a
    Service and gets back from itself is nothing special."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni/addresses",
        "ranges": [[{"subnet": node.PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": True, "mtu": 1500, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "1.0.0", "name": "node", "plugins": plugins}


def containerd_file(state):
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{state["snapshotter"]}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{node.PAUSE}" # or a public registry is asked for one

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE nothing may have a lower oom_score_adj than what has started it, and runc
# gives up over it.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{state["binaries"][1]}/cni"]
conf_dir = "/run/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
"""


def kubelet_file(folder, state):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "address": state["address"],
        "tlsCertFile": str(folder.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(folder.pki / "kubelet.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [node.SERVICES_DNS],  # nothing answers there: the API server needs no DNS
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # The disk is the machine's: how full it is says nothing about the node.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "nodeStatusUpdateFrequency": "4s",
    }


def proxy_file(folder):
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": node.PODS,
        "hostnameOverride": node.NAME,
        "clientConnection": {"kubeconfig": str(folder.conf / "proxy.conf")},
        # These settings are the whole machine's: 0 leaves them alone.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def etcd():
    clients, peers = (f"http://127.0.0.1:{port}" for port in (ETCD_PORT, ETCD_PORT + 1))
    return [
        "etcd",
        "--data-dir=/var/lib/etcd",
        "--unsafe-no-fsync",  # nothing here outlives the machine
        "--log-level=warn",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
    ]


def apiserver(folder, state):
    pki = folder.pki
    return [
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--advertise-address={state['address']}",
        f"--secure-port={node.API_PORT}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-client.crt",
        f"--kubelet-client-key={pki}/apiserver-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/tokens.pub",
        f"--service-account-signing-key-file={pki}/tokens.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={node.SERVICES}",
        "--allow-privileged=true",
    ]


def controller_manager(folder):
    pki = folder.pki
    return [
        "kube-controller-manager",
        *clients(folder, "controller-manager"),
        f"--service-account-private-key-file={pki}/tokens.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=false",
    ]


def scheduler(folder):
    return ["kube-scheduler", *clients(folder, "scheduler")]


def clients(folder, name):
    config = folder.conf / f"{name}.conf"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]


def kubelet(folder, state):
    return [
        "kubelet",
        f"--config={folder.conf}/kubelet.yaml",
        f"--kubeconfig={folder.conf}/kubelet.conf",
        f"--hostname-override={node.NAME}",
        f"--node-ip={state['address']}",
    ]

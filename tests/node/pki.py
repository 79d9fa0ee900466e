"""The keys and certificates of a cluster with one node, and a kubeconfig for each of its parts.

One CA for everything. The subjects are those that Kubernetes gives its own roles to.
"""

import base64
import json
import subprocess

import node

DAYS = "365"


def make(folder, address):
    """Makes all of it, for a node with this address."""
    authority(folder)
    service_accounts(folder)
    name = "kubernetes.default.svc.cluster.local".split(".")
    names = [".".join(name[:count]) for count in (1, 2, 3, 5)]
    hosts = [f"DNS:{it}" for it in [*names, "localhost"]]
    hosts += [f"IP:{it}" for it in ["127.0.0.1", address, node.SERVICES_API]]
    certificate(folder, "apiserver", "/CN=kube-apiserver", hosts)
    certificate(folder, "apiserver-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    node_subject = f"/O=system:nodes/CN=system:node:{node.NAME}"
    certificate(folder, "kubelet", node_subject, [f"DNS:{node.NAME}", f"IP:{address}"])
    server = f"https://{address}:{node.API_PORT}"
    kubeconfig(folder, server, "kubelet")
    for part, subject in {
        "admin": "/O=system:masters/CN=kubernetes-admin",
        "controller-manager": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
        "proxy": "/CN=system:kube-proxy",
    }.items():
        certificate(folder, part, subject)
        kubeconfig(folder, server, part)


def authority(folder):
    key(folder, "ca")
    openssl(
        folder, "req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", "-days", DAYS,
        "-subj", "/CN=node-ca", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
    )  # fmt: skip


def service_accounts(folder):
    """The key that tokens are signed with, and the one they are checked with."""
    key(folder, "tokens")
    openssl(folder, "pkey", "-in", "tokens.key", "-pubout", "-out", "tokens.pub")


def certificate(folder, name, subject, hosts=()):
    """NAME.key and NAME.crt, for clients and, where it has hosts, for servers."""
    lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=clientAuth"]
    if hosts:
        lines[1] += ",serverAuth"
        lines.append("subjectAltName=" + ",".join(hosts))
    key(folder, name)
    request = openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", subject)
    extensions = folder.pki / f"{name}.extensions"
    extensions.write_text("\n".join(lines))
    openssl(
        folder, "x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", DAYS, "-extfile", extensions, "-out", f"{name}.crt", stdin=request,
    )  # fmt: skip
    extensions.unlink()


def key(folder, name):
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    openssl(folder, "genpkey", *curve, "-out", f"{name}.key")


def kubeconfig(folder, server, name):
    """A kubeconfig with everything in it, so that it can be copied elsewhere."""

    def inline(file):
        return base64.b64encode((folder.pki / file).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inline("ca.crt")}
    user = {
        "client-certificate-data": inline(f"{name}.crt"),
        "client-key-data": inline(f"{name}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": node.NAME, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": node.NAME, "context": {"cluster": node.NAME, "user": name}}],
        "current-context": node.NAME,
    }
    path = folder.conf / f"{name}.conf"
    path.write_text(json.dumps(config, indent=1))
    path.chmod(0o600)


def openssl(folder, *arguments, stdin=b""):
    ran = subprocess.run(
        ["openssl", *arguments], cwd=folder.pki, input=stdin, capture_output=True
    )
    if ran.returncode != 0:
        raise node.Failed(f"openssl {arguments[0]} failed: {ran.stderr.decode()}")
    return ran.stdout

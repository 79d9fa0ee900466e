"""A cluster to run scenarios in, by its kubeconfig: through kubectl, and through connections of its own.

Nothing here tries again by itself: what a scenario counts as one call is one request.
"""

import base64
import http.client
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import time
import urllib.parse

from node import Failed

GROUP = "infrastructure.cluster.x-k8s.io"
PATIENCE = 120  # seconds that something may take which has to come


class Cluster:
    def __init__(self, kubeconfig, kubectl):
        self.kubectl_line = [kubectl, f"--kubeconfig={kubeconfig}"]
        view = self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-ojson")
        config = json.loads(view)
        self.server = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
        self.trust, self.headers = credentials(config)

    def kubectl(self, *arguments, stdin=None):
        """What it prints; Failed with what it says when it fails."""
        ran = self.try_kubectl(*arguments, stdin=stdin)
        if ran.returncode != 0:
            raise Failed(f"kubectl {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    def try_kubectl(self, *arguments, stdin=None, timeout=300):
        stdin = json.dumps(stdin) if isinstance(stdin, dict) else stdin
        return subprocess.run(
            [*self.kubectl_line, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout
        )

    def apply(self, *objects):
        for it in objects:
            self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=it)

    def get(self, *what):
        """An object or a list of them; None when it is not there."""
        found = self.kubectl("get", *what, "--ignore-not-found", "-ojson")
        return json.loads(found) if found.strip() else None

    def connection(self, timeout=30):
        """One of its own, which stays open."""
        port = self.server.port or 443
        return http.client.HTTPSConnection(self.server.hostname, port, timeout=timeout, context=self.trust)

    def call(self, method, path, body=None, connection=None, kind="application/json"):
        """Status and object of the answer to one request."""
        used = connection or self.connection()
        content = None if body is None else json.dumps(body)
        used.request(method, path, content, {**self.headers, "Content-Type": kind})
        answer = used.getresponse()
        content = answer.read()
        if connection is None:
            used.close()
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, {"message": content.decode(errors="replace")}


def credentials(config):
    """The TLS context and the headers that say who asks."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cadata=decode(cluster["certificate-authority-data"]))
    # Certificates of clusters often lack what only the newest Pythons ask for.
    trust.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile("w") as pair:
            pair.write(decode(user["client-key-data"]) + decode(user["client-certificate-data"]))
            pair.flush()
            trust.load_cert_chain(pair.name)
        return trust, {}
    if "token" in user:
        return trust, {"Authorization": f"Bearer {user['token']}"}
    raise Failed("the user of the kubeconfig has neither a client certificate nor a token in it")


def decode(text):
    return base64.b64decode(text).decode()


def eventually(what, until, seconds=PATIENCE, pause=0.5):
    """Asks until something other than None or False comes back; gives that back."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = until()
            said = f"the last answer was {found!r}"
        except (Failed, OSError, http.client.HTTPException) as error:
            found, said = None, str(error)
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise Failed(f"waited {seconds} s in vain for {what}", said)
        time.sleep(pause)


def expect(true, *said):
    if not true:
        raise Failed(*map(str, said))


def path(resource, namespace, name="", subresource="", dry=False):
    """The path of an object of Metal3, or of a collection."""
    parts = ["/apis", GROUP, "v1beta1/namespaces", namespace, resource, name, subresource]
    return "/".join(filter(None, parts)) + ("?dryRun=All" if dry else "")


def metal3(kind, namespace, name, spec, **metadata):
    return {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def find_kubectl(folders):
    for folder in [*folders, *os.environ["PATH"].split(":")]:
        if os.access(pathlib.Path(folder, "kubectl"), os.X_OK):
            return os.path.join(folder, "kubectl")
    raise Failed("kubectl is missing")

"""Archives of images: one of a single static program, and what the images in others are called."""

import hashlib
import io
import json
import platform
import tarfile

TYPE = "application/vnd.oci.image"


def pack(archive, name, program, user):
    """Writes an OCI archive of an image with nothing in it but that program."""
    layer = tar({program.rsplit("/", 1)[1]: open(program, "rb").read()}, 0o755)
    where = {"os": "linux", "architecture": {"aarch64": "arm64"}.get(platform.machine(), "amd64")}
    blobs = {}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{TYPE}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layers = [blob(layer, "layer.v1.tar")]
    config = {
        **where,
        "config": {"User": user, "Entrypoint": ["/" + program.rsplit("/", 1)[1]]},
        "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
    }
    config = blob(json.dumps(config).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": layers}
    manifest = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    manifest |= {"platform": where, "annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "manifests": [manifest]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    archive.write_bytes(tar({**files, **blobs}, 0o644))


def tar(files, mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def names_in(archive):
    """The names that an OCI archive itself gives to its images; none where it leaves that open."""
    with tarfile.open(archive) as files:
        try:
            index = json.load(files.extractfile("index.json"))
        except KeyError:
            return []
    entries = [it.get("annotations", {}) for it in index["manifests"]]
    return [it["io.containerd.image.name"] for it in entries if "io.containerd.image.name" in it]


def full_name(name):
    """What kubelet makes of the name of an image in a pod: `guard:dev` is one of the public registry."""
    host, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    return name if "." in host or ":" in host or host == "localhost" else f"docker.io/{name}"

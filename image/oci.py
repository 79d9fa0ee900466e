#!/usr/bin/env python3
"""An image of one static program, without a container engine.

  oci.py pack ARCHIVE --binary FILE --name NAME:TAG --version V [--revision R]
      Writes an OCI archive: the program alone, as `/metal3-guard`, with the entry point, user and
      labels of the Dockerfile. The same input gives the same bytes.
  oci.py check ARCHIVE [--limit BYTES]
      Checks an archive, from here or from an engine: digests, sizes, entry point, user, that the
      program is static, and that it runs where there is nothing else.

The archive can be read by `ctr images import`, `podman load`, `skopeo` and `kind load
image-archive`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile

PROGRAM = "metal3-guard"
USER = "65532:65532"
ENTRYPOINT = [f"/{PROGRAM}"]
LIMIT = 15_000_000
TYPE = "application/vnd.oci.image"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pack")
    command.add_argument("archive")
    command.add_argument("--binary", required=True)
    command.add_argument("--name", required=True)
    command.add_argument("--version", required=True)
    command.add_argument("--revision", default="")
    command = commands.add_parser("check")
    command.add_argument("archive")
    command.add_argument("--limit", type=int, default=LIMIT)
    args = parser.parse_args()
    try:
        if args.command == "pack":
            pack(args)
        else:
            check(args)
    except Wrong as error:
        sys.exit(f"{args.archive}: {error}")


class Wrong(Exception):
    """What is wrong with an archive, for a person."""


def pack(args):
    with open(args.binary, "rb") as file:
        program = file.read()
    machine = elf(program)
    layer = tar([(PROGRAM, program, 0o755)])
    # Compressed without a name and a time in it.
    packed = gzip.compress(layer, 9, mtime=0)
    blobs = {}

    def blob(data, media):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"{TYPE}.{media}", "digest": digest, "size": len(data)}

    where = {"architecture": machine, "os": "linux"}
    config = {
        **where,
        "config": {
            "User": USER,
            "Entrypoint": ENTRYPOINT,
            "WorkingDir": "/",
            "ExposedPorts": {"8080/tcp": {}, "8443/tcp": {}},
            "Labels": labels(args.version, args.revision),
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()],
        },
        "history": [{"created_by": "image/oci.py pack"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{TYPE}.manifest.v1+json",
        "config": blob(text(config), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
    }
    entry = blob(text(manifest), "manifest.v1+json")
    entry["platform"] = where
    # The first is read by containerd, the second by the others.
    entry["annotations"] = {
        "io.containerd.image.name": args.name,
        "org.opencontainers.image.ref.name": args.name,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{TYPE}.index.v1+json",
        "manifests": [entry],
    }
    files = [("oci-layout", text({"imageLayoutVersion": "1.0.0"}), 0o644)]
    files.append(("index.json", text(index), 0o644))
    for digest, data in sorted(blobs.items()):
        files.append(("blobs/" + digest.replace(":", "/"), data, 0o644))
    # Only a complete archive has the name that was asked for.
    with open(args.archive + ".new", "wb") as file:
        file.write(tar(files))
    os.replace(args.archive + ".new", args.archive)
    print(f"{args.archive}: {args.name}, {os.path.getsize(args.archive)} bytes")


def labels(version, revision):
    """What the Dockerfile sets too."""
    found = {
        "org.opencontainers.image.title": PROGRAM,
        "org.opencontainers.image.description": "Admission webhook that keeps Metal3DataTemplates "
        "from getting stuck, and says what blocks what",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
    }
    if revision:
        found["org.opencontainers.image.revision"] = revision
    return found


def text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(files):
    """A tar of these files, of nobody and of no time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, mode in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), mode, 0
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def elf(program):
    """The architecture of a static program; Wrong when it is no such program."""
    if program[:4] != b"\x7fELF" or program[4] != 2 or program[5] != 1:
        raise Wrong("the program is no ELF of 64 bits for Linux")
    machine = {62: "amd64", 183: "arm64"}.get(struct.unpack_from("<H", program, 18)[0])
    if machine is None:
        raise Wrong("the program is neither for amd64 nor for arm64")
    start = struct.unpack_from("<Q", program, 32)[0]
    size, count = struct.unpack_from("<HH", program, 54)
    # 3 is PT_INTERP: the path of a dynamic linker, which an empty file system has not.
    kinds = [struct.unpack_from("<I", program, start + i * size)[0] for i in range(count)]
    if 3 in kinds:
        raise Wrong("the program is linked dynamically; it would not start in an empty image")
    return machine


def check(args):
    with tarfile.open(args.archive) as archive:
        files = {it.name: archive.extractfile(it).read() for it in archive if it.isfile()}
    for name, data in files.items():
        if name.startswith("blobs/sha256/") and hashlib.sha256(data).hexdigest() != name[13:]:
            raise Wrong(f"the content of {name} is not what its name says")

    def blob(entry):
        data = files.get("blobs/" + entry["digest"].replace(":", "/"))
        if data is None:
            raise Wrong(f"{entry['digest']} is missing")
        if len(data) != entry["size"]:
            raise Wrong(f"{entry['digest']} has {len(data)} bytes, not {entry['size']}")
        return data

    if "index.json" not in files or "oci-layout" not in files:
        raise Wrong("is no OCI archive")
    entry = json.loads(files["index.json"])["manifests"][0]
    manifest = json.loads(blob(entry))
    if "manifests" in manifest:  # an index in the index, for several architectures
        manifest = json.loads(blob(manifest["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    settings = config["config"]
    expect("user", settings.get("User"), USER)
    expect("entry point", settings.get("Entrypoint"), ENTRYPOINT)
    expect("operating system", config["os"], "linux")
    found = settings.get("Labels") or {}
    version = found.get("org.opencontainers.image.version", "")
    for label, value in labels(version, "").items():
        expect(f"label {label}", found.get(label), value)

    layers = [blob(entry) for entry in manifest["layers"]]
    layers = [gzip.decompress(it) if it[:2] == b"\x1f\x8b" else it for it in layers]
    identities = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
    expect("content of the layers", identities, config["rootfs"]["diff_ids"])
    size = sum(map(len, layers))
    if size > args.limit:
        raise Wrong(f"unpacked it has {size} bytes; the limit is {args.limit}")

    program = find(layers)
    expect("architecture", config["architecture"], elf(program))
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, PROGRAM), "wb") as file:
            file.write(program)
            os.fchmod(file.fileno(), 0o755)
        ran = run(root, config["architecture"])
    if ran is not None and version and ran != f"{PROGRAM} {version}":
        raise Wrong(f"runs as {ran!r}, and its label says version {version}")
    ran = ran or "not run here: another root is not allowed, or it is of another architecture"
    packed = os.path.getsize(args.archive)
    print(f"{args.archive}: in order; {size} bytes, {packed} packed; {ran}")


def find(layers):
    """The program, from the topmost layer that has it."""
    for layer in reversed(layers):
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for it in archive:
                if it.isfile() and it.name.removeprefix("./") == PROGRAM:
                    if not it.mode & stat.S_IXOTH:
                        raise Wrong(f"/{PROGRAM} is not for everyone to run")
                    return archive.extractfile(it).read()
    raise Wrong(f"has no /{PROGRAM}")


def expect(what, found, expected):
    if found != expected:
        raise Wrong(f"{what} is {found!r}, not {expected!r}")


def run(root, architecture):
    """What `--version` says with nothing but the image to see; None where that is not allowed."""
    here = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if architecture != here or not shutil.which("unshare"):
        return None
    # Root needs no namespace of its own for another root; others get one where they may.
    namespace = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    enter = ["unshare", *namespace, f"--root={root}", "--wd=/"]
    try:
        tried = subprocess.run([*enter, ENTRYPOINT[0], "--version"], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise Wrong("--version does not end") from None
    error = tried.stderr.decode(errors="replace").strip()
    if tried.returncode != 0:
        if "unshare" in error or "not permitted" in error:
            return None
        raise Wrong(f"does not run in an empty file system: {error or tried.returncode}")
    return tried.stdout.decode().strip()


if __name__ == "__main__":
    main()

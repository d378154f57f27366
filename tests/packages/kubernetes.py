"""Checks the manifests for Kubernetes.

    kubernetes.py TODANA

Each manifest is compared with the schema of its kind. Their names, ports, paths and user must agree
with each other, with the container image, and with the server.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

MANIFESTS = pathlib.Path("packaging/kubernetes")


def agree(what, *values):
    assert all(value == values[0] for value in values), f"{what}: {values}"


def main(todana):
    listed = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    files = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
    agree("files", sorted([*listed, "kustomization.yaml"]), files)
    kinds = {}
    for name in listed:
        manifest = yaml.safe_load((MANIFESTS / name).read_text())
        kubernetes_validate.validate(manifest, "1.30", strict=True)
        kinds[manifest["kind"]] = manifest

    pods = kinds["StatefulSet"]["spec"]
    pod = pods["template"]["spec"]
    (container,) = pod["containers"]
    labels = pods["template"]["metadata"]["labels"]
    agree("selectors", labels, pods["selector"]["matchLabels"], kinds["Service"]["spec"]["selector"],
          *(kinds[kind]["spec"][field]["matchLabels"]
            for kind, field in [("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")]))
    agree("service", pods["serviceName"], kinds["Service"]["metadata"]["name"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    services = kinds["Service"]["spec"]["ports"]
    agree("ports", ports, {port["targetPort"]: port["port"] for port in services})
    rules = kinds["NetworkPolicy"]["spec"]["ingress"]
    agree("rules", sorted(ports), sorted(port["port"] for rule in rules for port in rule["ports"]))

    image = pathlib.Path("xtask/src/packages/image.rs").read_text()
    user = int(re.search(r"const USER: u32 = (\d+)", image)[1])
    data = re.search(r'const DATA: &str = "(.*)"', image)[1]
    agree("user", user, *(pod["securityContext"][field] for field in ["runAsUser", "runAsGroup", "fsGroup"]))
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    agree("data", data, mounts["data"])
    version = subprocess.run([todana, "version"], capture_output=True, text=True, check=True).stdout
    agree("version", container["image"], version.strip().replace(" ", ":"))

    (name, text), = kinds["ConfigMap"]["data"].items()
    agree("configuration", container["args"][-1], f"{mounts['configuration']}/{name}")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_text(text)
        subprocess.run([todana, "config", "check", path], check=True)
        shown = subprocess.run([todana, "config", "show", "--config", path], capture_output=True, text=True)
    assert f'data-dir = "{data}"' in shown.stdout, shown
    assert f"port = {ports['memcached']}" in shown.stdout, shown
    agree("metrics", ports["metrics"], ports["memcached"] + 10000)


if __name__ == "__main__":
    main(*sys.argv[1:])

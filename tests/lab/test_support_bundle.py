# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook support_bundle on a broken group with planted secrets, as an ordinary user with sudo."""

import base64
import json
import secrets
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from gb10lab.machines import USER
from labcommand import LabCommand, changed
from sitecommand import Site

COVERS = (
    "playbooks/support_bundle.yml",
    "roles/support_bundle",
    "plugins/module_utils/_common",
    "plugins/action/support_bundle.py",
)

TWO = {"topology": {"nodes": 2, "tp": 2}}
HF_TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
API_KEY = "plain words of the gateway"
WIFI = "correct horse battery"
REGISTRY = "registry-pass-0815"
PROXY = "proxy-pass-0816"
WEBHOOK = "https://chat.example/hooks/9q7opaque4711"
MYSQL = "mysql-pass-0818"
VAULT = "seven words that only the vault has"
SETTING = "opaque-setting-0817"
NETPLAN = f'network: {{wifis: {{wlP9s9: {{access-points: {{Home: {{password: "{WIFI}"}}}}}}}}}}'
VALUES = {
    "gateway_api_key": API_KEY,
    "serving_plan_env": {"MY_SETTING": SETTING},
    "sglang_hf_token": HF_TOKEN,
    "vault_chat_words": VAULT,
    "k3s_registries": {"configs": {"r.lan": {"auth": {"username": "robot", "password": REGISTRY}}}},
    "monitoring_alertmanager": {"receivers": [{"name": "chat", "webhook_configs": [{"url": WEBHOOK}]}]},
}
# Writes its input to the log of its container.
TO_LOG = "import sys; open('/proc/1/fd/1', 'w').write(sys.stdin.read())"


def read(path: Path) -> dict[str, str]:
    """Return the files of an archive by their place in it."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None
            found[member.name.partition("/")[2]] = stream.read().decode()
    return found


def newest(site: Site) -> Path:
    return max((site.lab.results / "support").glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site.deployed(make_lab(), nodes=2, serving_plan_overrides=TWO, **VALUES)
    made.play("serve")
    made.play("verify")
    return made


@pytest.fixture(scope="module")
def planted(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the secrets by kind. Each is where a cluster keeps it; ``test`` writes some of them to logs, too."""
    key = tmp_path_factory.mktemp("tls") / "key"
    openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gb10")
    subprocess.run([*openssl, "-keyout", key, "-out", key.with_name("crt")], check=True, capture_output=True)
    site.kubectl("create", "secret", "tls", "front", f"--cert={key.with_name('crt')}", f"--key={key}")
    site.kubectl("create", "secret", "generic", "gb10-gateway", f"--from-literal=api-key={API_KEY}")
    site.kubectl("create", "namespace", "monitoring")
    receivers = json.dumps(VALUES["monitoring_alertmanager"])
    secret = ("create", "secret", "generic", "monitoring", f"--from-literal=alertmanager.yml={receivers}")
    site.kubectl("--namespace=monitoring", *secret)
    site.lab.shell("spark1", f"umask 077; echo '{NETPLAN}' > /etc/netplan/99-wifi.yaml")
    config = ("config", "view", "--raw", "-o", "jsonpath={.users[*].user.client-key-data}")
    account = (f"{site.group}-0-0", "-c", "transport", "--", "cat", "/var/run/secrets/gb10/token")
    # What a host keeps outside of what a bundle reads; ``test`` writes them to logs.
    wireguard = base64.b64encode(secrets.token_bytes(32)).decode()
    hashed = site.lab.shell("spark1", f"getent shadow {USER} | cut -d: -f2")
    assert hashed.startswith("$")
    return {
        "API key of the gateway": API_KEY,
        "token of Hugging Face": HF_TOKEN,
        "password of the Wi-Fi": WIFI,
        "password of a registry": REGISTRY,
        "token of K3s": site.lab.shell("spark1", "cat /etc/rancher/k3s/agent-token"),
        "private key of TLS": key.read_text(),
        "client key of the kubeconfig": site.kubectl(*config).split()[0],
        "URL of a webhook": WEBHOOK,
        "password of a proxy": PROXY,
        "variable of a vault": VAULT,
        "variable of a container": SETTING,
        "hash of a login": hashed,
        "key of WireGuard": wireguard,
        "key file of PuTTY": base64.b64encode(secrets.token_bytes(48)).decode(),
        "password of a database": MYSQL,
        "token of a service account": site.kubectl("exec", *account),
        "password of sudo": (site.lab.state / "become-password").read_text().strip(),
    }  # fmt: skip


def said_by_a_program(planted: dict[str, str]) -> str:
    """Return lines of a log with all secrets, as programs write them."""
    return f"""Authorization: Bearer {planted["API key of the gateway"]}
hf_hub_download(token='{HF_TOKEN}') failed
wpa_supplicant: psk={WIFI}
pull https://robot:{REGISTRY}@r.lan/v2 failed: 401; tried {REGISTRY}
joining with {planted["token of K3s"]}
{planted["private key of TLS"]}
client-key-data: {planted["client key of the kubeconfig"]}
notify: Post "{WEBHOOK}": timeout
HTTPS_PROXY=http://user:{PROXY}@proxy.lan:3128
the bot said {VAULT}
{USER}:{planted["hash of a login"]}:20000:0:99999:7:::
apiVersion: v1
data:
  api-key: {base64.b64encode(API_KEY.encode()).decode()}
kind: Secret
containers:
- args:
  - --hf-token
  - {HF_TOKEN}
  env:
  - name: REGISTRY_PASSWORD
    value: {REGISTRY}
machine r.lan
  login robot
  password {REGISTRY}
docker login -u robot -p {REGISTRY} r.lan
k3s crictl pull --creds robot:{REGISTRY} r.lan/sglang
kubectl create secret generic hub --from-literal=token={HF_TOKEN}
the token is {base64.b64encode(HF_TOKEN.encode()).decode()} in base64
GET https://hub.lan/?key={quote(API_KEY)}
echo {planted["password of sudo"]} | sudo -S id
wg set wg0 peer x preshared-key <(echo {planted["key of WireGuard"]})
mysqldump -u root -p{MYSQL} db
Private-Lines: 1
{planted["key file of PuTTY"]}
Private-MAC: 0a1b2c
GET /api Bearer {planted["token of a service account"]}
[sudo] password for user: {planted["password of sudo"]}
the last line
"""


def parts(secret: str) -> set[str]:
    """Return what must not be in an archive: a secret, its lines, and its base64."""
    lines = {line for line in secret.splitlines() if len(line) > 3 and "PRIVATE KEY" not in line}
    lines.add(quote(secret))
    return lines | {base64.b64encode(one.encode()).decode().rstrip("=") for one in (secret, secret.strip())}


def test_the_bundle_of_a_broken_group_has_the_cause_and_no_secret(site: Site, planted: dict[str, str]) -> None:
    text = said_by_a_program(planted)
    site.lab.shell("spark1", f"mkdir -p /var/log/gb10/a/b; cat > /var/log/gb10/a/b/c.log <<'EOT'\n{text}EOT")
    # logger writes one entry per call.
    entry = "printf 'MESSAGE=%s\\nOBJECT_SYSTEMD_UNIT=k3s.service\\n' \"$line\" | logger --journald"
    site.lab.shell("spark1", f"while IFS= read -r line; do {entry}; done <<'EOT'\n{text}EOT")
    head, worker = (f"statefulset/{site.group}-{rank}" for rank in (0, 1))
    unsafe = (f"MY_TOKEN={HF_TOKEN}", f"HTTPS_PROXY=http://user:{PROXY}@proxy.lan:3128")
    site.kubectl("set", "env", head, worker, "-c", "sglang", "NCCL_NET=Missing", *unsafe)
    site.kubectl("delete", "pod", "-l", f"gb10.cluster/instance={site.group},gb10.cluster/rank")
    write = ("exec", "-i", f"{site.group}-0-0", "-c", "transport", "--", "python3", "-c", TO_LOG)
    deadline = time.monotonic() + 120
    while (done := site.ask(*write, stdin=text)).returncode:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(2)
    said = site.play("support_bundle")
    assert changed(said) == 1
    path = newest(site)
    assert path.stat().st_mode & 0o777 == 0o600
    files = read(path)
    print(files["INDEX.md"])
    assert len(planted) >= 10 and all(map(parts, planted.values()))
    leaks = [
        (kind, name) for kind, secret in planted.items() for name, text in files.items()
        if any(part in text for part in parts(secret))
    ]  # fmt: skip
    assert leaks == []
    # The planted texts were read: without this, a bundle without them would pass.
    for name, marker in (
        ("hosts/spark1/netplan.txt", "99-wifi.yaml"),
        ("hosts/spark1/group_logs.txt", "gb10/a/b/c.log"),
        ("hosts/spark1/log_kubernetes.txt", "Authorization: "),
        (f"cluster/log/{site.namespace}/{site.group}-0-0/transport.txt", "Authorization: "),
    ):
        assert "<removed>" in files[name].partition(marker)[2][:200], name
        assert "netplan" in name or "the last line" in files[name], name
    assert "NCCL_NET" in files["cluster/pods.txt"] and "Missing" in files["cluster/pods.txt"]
    assert "gb10.cluster/transport" in files["cluster/pods.txt"]
    assert "MY_SETTING" in files["plans/serving.json"] and "MY_SETTING" in files["cluster/pods.txt"]
    assert {"plans/fabric.json", "plans/serving.json", "hosts/spark2/netplan.txt"} < set(files)
    assert any(name.startswith("verdicts/transport-") and '"rdma"' in text for name, text in files.items())
    assert "nvidia-smi is not installed" in files["INDEX.md"]
    site.lab.shell("spark1", "rm /etc/netplan/99-wifi.yaml")

# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a support bundle has what explains a fault, names what is missing, and has none of the planted secrets."""

import base64
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible.release import __version__ as ansible_version
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import support_cluster_info, support_info
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
PEM = "\n".join(
    ["-----BEGIN PRIVATE KEY-----", *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj" * 1] * 3]
)
SECRETS = {
    "k3s_token": f"K10{'0123456789abcdef' * 4}::server:k3s-join-words",
    "kubeconfig_key": base64.b64encode(f"{PEM}\n-----END PRIVATE KEY-----".encode()).decode(),
    "server_key": "sk-of-the-server-4711",
    "tls_key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
    "hf_in_env": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "pod_env": "value of a variable of the pod",
    "wifi": "correct horse battery",
    "registry": "registry-pass-0815",
    "vault": "the words of the vault file",
    "bearer": "abcdef.opaque-bearer-123",
    "webhook": "https://chat.example/hooks/9q7opaque",
    "mirror": "mirror-pass-4712",
    "own": "three words of an owner",
}
# SGLang's last lines in the status of its pod begin anywhere, here within a key.
LAST_LINES = f"{SECRETS['tls_key']}\nMIIEvQIBADANBgkq\n-----END PRIVATE KEY-----\ntoken:\n  {SECRETS['own']}"
LOG = f"""[18:00:00] server_args=ServerArgs(model_path='x', api_key='{SECRETS["server_key"]}', tp_size=4)
Prefill batch, #new-seq: 1, #new-token: 12, #cached-token: 0, token usage: 0.31
GET /v1/models Authorization: Bearer {SECRETS["bearer"]}
export HF_TOKEN={SECRETS["hf_in_env"]}
time="18:00" level=info msg="joining" token={SECRETS["k3s_token"]}
pull https://robot:{SECRETS["registry"]}@registry.example/v2 failed: 401
{PEM}
-----END PRIVATE KEY-----
spark1:99:99 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"""
NETPLAN = f"""network:
  wifis:
    wlP9s9:
      access-points:
        "Home": {{password: "{SECRETS["wifi"]}"}}
        "Office":
          password: {SECRETS["wifi"]}
        "Lab":
          auth:
            key-management: psk
            password: |-
              {SECRETS["wifi"]}
      dhcp4: true
  ethernets:
    enp1s0f0np0: {{mtu: 9000}}
"""
# As role k3s writes it, and as an owner may.
REGISTRIES = f"""configs:
  r.lan:
    auth:
      password: {SECRETS["registry"]}
      username: robot
  other.lan: {{"auth": {{"username": "robot", "password": "{SECRETS["mirror"]}"}}}}
"""
KERNEL = "2026-11-22T18:00:00 kernel: NVRM: Xid (PCI:000f:01:00): 79\n2026-11-22T18:00:01 kernel: usb 1-1: new device\n"


class Cluster:
    """A cluster with one rank that has crashed, and a Secret that nobody may read."""

    def __init__(self, *_names: str) -> None:
        env = [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "MY_SETTING", "value": SECRETS["pod_env"]}]
        env += [{"name": "HF_TOKEN", "value": SECRETS["hf_in_env"]}, {"name": "KEY", "valueFrom": {"secretKeyRef": {}}}]
        container = {"name": "sglang", "image": "x/sglang:1", "env": env}
        container["args"] = ["--tp-size", "4", "--api-key", SECRETS["server_key"]]
        names = {"name": "gemma-0", "namespace": "gb10-serving", "labels": {"gb10.cluster/instance": "gemma"}}
        notes = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(env)}
        states = [{"name": "sglang", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
        states[0]["lastState"] = {"terminated": {"exitCode": 1, "message": LAST_LINES}}
        conditions = [{"type": "gb10.cluster/transport", "status": "False", "reason": "WrongTransport"}]
        status = {"containerStatuses": states, "conditions": conditions}
        self.pod = {"metadata": names | {"annotations": notes}, "spec": {"containers": [container]}, "status": status}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "spark1", "annotations": {"token": SECRETS["k3s_token"]}}, "status": {}}]

    def all_pods(self) -> list[dict[str, Any]]:
        multus = {"name": "multus-x", "namespace": "kube-system"}
        return [self.pod, {"metadata": multus, "spec": {"containers": []}, "status": {}}]

    def events(self, namespace: str) -> list[dict[str, Any]]:
        if namespace == "kube-system":
            raise ClusterError("can't list the events of namespace kube-system (403: Forbidden)", 403)
        return [{"message": f"Back-off pulling with password={SECRETS['registry']}"}]

    def log_end(self, _space: str, _pod: str, _container: str, _lines: int, previous: bool) -> list[str]:
        return [*LOG.splitlines(), "before the restart" if previous else "now"]


def ran(main: Any, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    with patch_module_args(options), pytest.raises(SystemExit):
        main()
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The answer of a host on which every secret lies, and that has neither a GPU nor K3s."""
    files = {
        "etc/netplan/90-NM-wifi.yaml": NETPLAN,
        "etc/rancher/k3s/config.yaml": f"token: {SECRETS['k3s_token']}\n",
        "etc/rancher/k3s/registries.yaml": REGISTRIES,
        "etc/rancher/k3s/k3s.yaml": f"client-key-data: {SECRETS['kubeconfig_key']}\n",
        "etc/os-release": "NAME=DGX OS\n",
        "var/lib/rancher/k3s/server/token": f"{SECRETS['k3s_token']}\n",
        "var/log/gb10/gb10-serving/gemma/2026-11-22/rank0.log": LOG
        + f"\nwords: k3s-join-words plainagenttoken4711 {SECRETS['registry']} {SECRETS['mirror']}\n",
        "etc/rancher/k3s/agent-token": "plainagenttoken4711\n",
        "root/.vault_pass": SECRETS["vault"],
        "sys/bus/pci/devices/000f:01:00.0/aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3\n",
        "sys/class/infiniband/rocep1s0f0/ports/1/counters/port_xmit_data": "4711\n",
    }
    for name, text in files.items():
        path = tmp_path / "host" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {
        "dmesg": f"cat <<'EOT'\n{KERNEL}EOT",
        "journalctl": f"cat <<'EOT'\n{LOG}\nEOT",
        "rdma": "echo Permission denied >&2; exit 1",
        "timeout": 'shift; exec "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin")
    monkeypatch.setattr(support_info.AnsibleModule, "get_bin_path", lambda _self, name: found(programs / name))
    return ran(support_info.main, capsys, root=str(tmp_path / "host"), sysfs_root=str(tmp_path / "host/sys"))


def found(path: Path) -> str | None:
    return str(path) if path.exists() else None


def leaked(text: str) -> list[str]:
    return [
        name
        for name, secret in SECRETS.items()
        if any(part in text for part in (secret, "k3s-join-words", "plainagenttoken4711"))
    ]


def test_a_host_tells_what_explains_a_fault_and_no_secret(host: dict[str, Any]) -> None:
    texts = host["texts"]
    assert leaked(json.dumps(texts)) == []
    assert "NVRM: Xid" in texts["kernel_errors"] and "usb" not in texts["kernel_errors"]
    assert "TOTAL_ERR_COR 3" in texts["aer"]
    assert texts["counters_ports"].endswith("port_xmit_data: 4711")
    assert "mtu: 9000" in texts["netplan"] and "dhcp4: true" in texts["netplan"]
    log = texts["group_logs"]
    assert "#new-token: 12, #cached-token: 0, token usage: 0.31" in log
    assert "tp_size=4" in log and "via NET/IB/0" in log and "https://<removed>@registry.example" in log


T = "2026-11-30 02:00:00"
HINT = "Hint: You are currently not seeing messages from other users and the system."
XID = "2026-11-30T01:55:00+00:00 spark1 kernel: NVRM: Xid (PCI:000f:01:00): 119, Timeout after 6s"
DOWN = "2026-11-30T01:55:00+00:00 spark1 kernel: mlx5_core 0000:01:00.0 enp1s0f0np0: Link down"


@pytest.mark.parametrize(
    ("when", "answer", "said"),
    [
        (T, (0, f"{XID}\nx kernel: usb 1-1: new device\n{DOWN}\n", ""), f"{XID}\n{DOWN}"),
        (T, (0, "-- No entries --\n", ""), "nothing about the GPU, PCIe, the fabric or memory"),
        (T, (0, f"{XID}\n" * 90, ""), "\n".join([XID] * 10 + ["and 80 more lines"])),
        (T, (0, f"{XID} password={SECRETS['registry']}{'x' * 999}\n", ""), f"{XID} password=<removed>"),
        (T, (0, XID, f"{HINT}\n   Users in groups 'adm'"), f"it cannot be read: {HINT} Users in groups 'adm'"),
        (T, (1, "", "No journal files were opened due to insufficient permissions.\n"),
         "it cannot be read: No journal files were opened due to insufficient permissions."),
        (T, (None, "", ""), "it cannot be read: journalctl is not installed, or failed"),
        ("rank 1: stopped", (0, XID, ""), "time data 'rank 1: stopped' does not match format '%Y-%m-%d %H:%M:%S'"),
    ],
)  # fmt: skip
def test_the_kernel_s_log_around_a_hang(when: str, answer: tuple[int | None, str, str], said: str) -> None:
    asked: list[Any] = []
    assert support_info.around(lambda words: asked.append(words) or answer, when) == said
    assert not asked or asked[0][2:4] == ["--since=2026-11-30 01:50:00 UTC", "--until=2026-11-30 02:01:00 UTC"]


def test_only_the_end_of_a_long_log_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "srv/logs/a/b"
    logs.mkdir(parents=True)
    (logs / "rank.log").write_text("old line\n" * 900 + "the last line")
    options = {"limit_kib": 1, "root": str(tmp_path), "sysfs_root": str(tmp_path), "log_dir": "/srv/logs"}
    text = ran(support_info.main, capsys, **options)["texts"]["group_logs"]
    assert len(text) < 1200 and text.endswith("the last line") and "[only the last 1024 characters]" in text


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    monkeypatch.setattr(support_cluster_info, "Cluster", Cluster)
    return ran(support_cluster_info.main, capsys, kubeconfig="/nowhere", context="gb10", namespace="gb10-serving")


def test_a_cluster_tells_conditions_events_and_logs_and_no_secret(cluster: dict[str, Any]) -> None:
    texts = cluster["texts"]
    assert leaked(json.dumps(texts)) == []
    assert '"exitCode": 1' in texts["pods"]
    assert "WrongTransport" in texts["pods"] and "CrashLoopBackOff" in texts["pods"] and '"INFO"' in texts["pods"]
    assert texts["log gb10-serving gemma-0 sglang before"].endswith("before the restart")
    assert "Back-off pulling" in texts["events gb10-serving"]
    assert "403: Forbidden" in cluster["missing"]["events kube-system"]


def test_without_a_cluster_the_reason_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    where = {"kubeconfig": "/nowhere/config", "context": "gb10", "namespace": "gb10-serving"}
    answer = ran(support_cluster_info.main, capsys, **where)
    assert answer["texts"] == {}
    assert "/nowhere/config" in answer["missing"]["cluster"]


def bundled(tmp_path: Path, host: dict[str, Any], cluster: dict[str, Any], *words: str) -> dict[str, Any]:
    """Write a bundle of a host that was read and of one that was down, and return the result of the action."""
    inventory = {
        "spark1": {
            "support_host": host,
            "gateway_api_key": SECRETS["server_key"],
            "ansible_password": SECRETS["vault"],
            "vault_chat": {"words": [SECRETS["own"]]},
            "k3s_registries": {"configs": {"r.lan": {"auth": {"username": "robot", "password": SECRETS["mirror"]}}}},
            "monitoring_alertmanager": {
                "route": {"receiver": "chat"},
                "receivers": [{"name": "chat", "webhook_configs": [{"url": SECRETS["webhook"]}]}],
            },
        },
        "spark2": {"support_host": {"unreachable": True, "msg": f"no route; tried {SECRETS['vault']}"}},
    }
    options = {"dest": str(tmp_path / "out"), "results": str(tmp_path), "register": "support_host", "cluster": cluster}
    note = ", ".join(SECRETS[name] for name in ("vault", "own", "mirror", "webhook"))
    options["plans"] = {"fabric": {"mtu": 9000, "note": f"robot in a chat has {note}"}, "serving": {}}
    environment = {"NCCL_DEBUG": "INFO", "MY_SETTING": SECRETS["pod_env"]}
    options["plans"]["fabric"]["ranks"] = [{"env": environment}]
    kept = {"content": "{{ written | to_json }}", "dest": str(tmp_path / "written.json")}
    here = {"run_once": True, "delegate_to": "localhost"}
    tasks = [
        {"gb10.cluster.support_bundle": options, "register": "written", **here},
        {"copy": kept, "check_mode": False, **here},
    ]
    book = [{"hosts": "all", "gather_facts": False, "tasks": tasks}]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": inventory}}))
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book))
    done = ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", tmp_path / "book.yml", "-vvv", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((tmp_path / "written.json").read_text()))


def test_the_archive_has_all_parts_and_none_of_the_secrets(
    tmp_path: Path, host: dict[str, Any], cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (tmp_path / "transport-gemma").mkdir()
    (tmp_path / "transport-gemma/transport.json").write_text('{"verdict": "socket"}')
    answer = bundled(tmp_path, host, cluster)
    path = Path(answer["path"])
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with tarfile.open(path) as archive:
        files = {m.name.partition("/")[2]: archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]
    assert leaked(json.dumps(files)) == []
    assert {"hosts/spark1/netplan.txt", "cluster/pods.txt", "cluster/log/gb10-serving/gemma-0/sglang.txt"} < set(files)
    assert {"plans/fabric.json", "verdicts/transport-gemma/transport.json"} < set(files)
    release = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    versions = files["controller/versions.txt"].splitlines()
    assert {f"gb10.cluster: {release}", f"ansible-core: {ansible_version}"} < set(versions)
    assert "robot in a chat has <removed>" in files["plans/fabric.json"]
    assert '"NCCL_DEBUG": "INFO"' in files["plans/fabric.json"]
    assert '"MY_SETTING": "<removed>"' in files["plans/fabric.json"]
    index = files["INDEX.md"]
    assert "- hosts/spark2: no route; tried <removed>" in index
    assert "- hosts/spark1: gpu: nvidia-smi is not installed" in index
    assert "- plans/serving: it could not be made" in index
    assert "texts are missing or incomplete" in answer["msg"]


def test_in_check_mode_nothing_is_written(
    tmp_path: Path, host: dict[str, Any], cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    answer = bundled(tmp_path, host, cluster, "--check")
    assert (answer["changed"], (tmp_path / "out").exists()) == (False, False)


def test_the_playbook_names_a_host_that_is_down_a_missing_cluster_and_a_plan_that_cannot_be_made(
    tmp_path: Path,
) -> None:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    down = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    values = {"gb10_kubeconfig": str(tmp_path / "none"), "gb10_results_dir": str(tmp_path), "gb10_fabric_rails": []}
    group = {"hosts": {"spark1": here, "spark2": down}, "vars": values}
    inventory = {"all": {"children": {"gb10_cluster": {"children": {"gb10_nodes": group}}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    done = ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", "playbooks/support_bundle.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next((tmp_path / "support").glob("*.tar.gz"))) as archive:
        stream = archive.extractfile(next(m for m in archive.getmembers() if m.name.endswith("/INDEX.md")))
        assert stream is not None
        index = stream.read().decode()
    assert "- hosts/spark1/os.txt: " in index
    for part in (
        "- hosts/spark2: ",
        f"cluster: cluster: can't use context gb10 of kubeconfig {tmp_path}/none",
        "- plans/fabric: ",
    ):
        assert part in index, index

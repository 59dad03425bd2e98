# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the control plane: a datastore, and Kubernetes' API server, controller manager and scheduler."""

import base64
import json
import secrets
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import deploy, join, passwords, pki, tokens
from .children import Children, log, notify_ready
from .datastore import Datastore, reconcile
from .settings import API_PORT, KUBECONFIG, Settings, StandInError, component, extra

_SHARED = ("server-ca", "client-ca", "request-header-ca", "etcd/server-ca")


class Server:
    """One server. ``start`` returns when its API answers."""

    def __init__(self, settings: Settings, children: Children) -> None:
        self._settings = settings
        self._children = children
        self._tls = settings.server / "tls"
        self._address = settings.node_ip
        self._datastore = Datastore(settings)
        self._join_socket = settings.server / "join.sock"

    def start(self) -> None:
        """Start the control plane, then accept joining nodes."""
        begun = time.monotonic()
        self._settings.server.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings.server.chmod(0o700)
        (self._settings.server / "manifests").mkdir(exist_ok=True)
        if self._settings.text("server"):
            self._bootstrap()
        for name in _SHARED:
            pki.authority(self._tls / name, f"k3s-{name.replace('/', '-')}@lab")
        pki.service_key(self._tls / "service.key")
        self._certificates()
        self._encryption()
        by_user = dict(
            zip(
                ("server", "node"),
                tokens.establish(self._settings, self._ca("server-ca").cert.read_bytes(), used=self._datastore.used),
                strict=True,
            )
        )
        self._write_kubeconfigs()
        self._datastore.start(self._children)
        if self._settings.embedded_etcd:
            # as K3s does: the API server ends if etcd has no leader yet, as while it takes in this server
            self._children.wait_for("etcd has a leader", self._etcd_ready, timeout=600)
        self._children.start("kube-apiserver", self._api_server())
        # a busy machine may take minutes; K3s itself waits without a limit
        self._children.wait_for("the API server answers", self._ready, timeout=600)
        log(f"API server ready after {time.monotonic() - begun:.1f} s")
        self._children.start("kube-controller-manager", self._controller_manager())
        self._children.start("kube-scheduler", self._scheduler())
        self._datastore.keep(self._shared_files())
        self._nodes.follow()
        join.serve(self._join_socket, self._ca("server-ca").cert.read_bytes(), by_user, {
            "/v1-k3s/certificates": ({"server", "node"}, self._node_certificates),
            "/v1-k3s/bootstrap": ({"server"}, self._hand_over),
            "/v1-k3s/member": ({"server"}, self._add_member),
        })  # fmt: skip
        deploy.start(self._settings)
        notify_ready()

    @property
    def _nodes(self) -> passwords.Passwords:
        context = api_context(self._ca("server-ca").cert, pki.Pair(self._tls / "client-admin"))
        return passwords.Passwords(f"https://127.0.0.1:{API_PORT}", context)

    def _ca(self, name: str) -> pki.Pair:
        return pki.Pair(self._tls / name)

    def _bootstrap(self) -> None:
        """Copy the first server's authorities once and join its etcd."""
        if self._datastore.joined:
            return
        given = self._settings.secret("token")
        if not given:
            raise StandInError("--token is required to join another server")
        member = {"name": self._settings.node_name, "peer": self._datastore.peer}
        while True:
            try:
                client = join.Client(self._settings.text("server"), tokens.parse(given), "server")
                files = client.post("/v1-k3s/bootstrap", {})["files"]
                reconcile(self._settings.server, files)
                self._datastore.join(client.post("/v1-k3s/member", member)["initial_cluster"])
                break
            except OSError as error:
                # etcd accepts one new member at a time, and none before the previous one has caught up
                log(f"{self._settings.text('server')} does not take this server yet: {error}")
                time.sleep(2)
        for name, text in files.items():
            pki.write_private(self._settings.server / name, text)

    def _hand_over(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._settings.embedded_etcd:
            raise StandInError(
                "this server's datastore is SQLite: only one started with cluster-init takes further servers"
            )
        return {"files": self._shared_files()}

    def _shared_files(self) -> dict[str, str]:
        """Return what all servers of a cluster have in common."""
        names = [f"tls/{name}.{kind}" for name in _SHARED for kind in ("crt", "key")] + ["tls/service.key"]
        if self._settings.flag("secrets-encryption"):
            names.append("cred/encryption-config.json")
        return {name: (self._settings.server / name).read_text() for name in names}

    def _add_member(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"initial_cluster": self._datastore.add(str(body["name"]), str(body["peer"]))}

    def _certificates(self) -> None:
        server, client = self._ca("server-ca"), self._ca("client-ca")
        name = self._settings.node_name
        api_names = [
            "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
            "localhost", "127.0.0.1", self._settings.service(1), self._address, name, socket.gethostname(),
            *self._settings.items("tls-san"),
        ]  # fmt: skip
        pki.certificate(self._tls / "serving-kube-apiserver", server, "/CN=kube-apiserver", api_names)
        for stem, subject in (
            ("client-admin", "/O=system:masters/CN=system:admin"),
            ("client-controller", "/CN=system:kube-controller-manager"),
            ("client-scheduler", "/CN=system:kube-scheduler"),
            ("client-kube-apiserver", "/O=system:masters/CN=kube-apiserver"),
        ):
            pki.certificate(self._tls / stem, client, subject)
        pki.certificate(self._tls / "client-auth-proxy", self._ca("request-header-ca"), "/CN=system:auth-proxy")
        etcd = self._ca("etcd/server-ca")
        for stem in ("server-client", "peer-server-client", "client"):
            pki.certificate(
                self._tls / "etcd" / stem, etcd, f"/CN=etcd-{stem}", ["localhost", "127.0.0.1", self._address, name]
            )

    def _encryption(self) -> None:
        path = self._settings.server / "cred" / "encryption-config.json"
        if self._settings.flag("secrets-encryption") and not path.exists():
            key = {"name": "aescbckey", "secret": base64.b64encode(secrets.token_bytes(32)).decode()}
            providers = [{"aescbc": {"keys": [key]}}, {"identity": {}}]
            pki.write_private(path, json.dumps({
                "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
                "resources": [{"resources": ["secrets"], "providers": providers}],
            }))  # fmt: skip

    def _write_kubeconfigs(self) -> None:
        url = f"https://127.0.0.1:{API_PORT}"
        mode = int(self._settings.text("write-kubeconfig-mode", "0600"), 8)
        target = Path(self._settings.text("write-kubeconfig", str(KUBECONFIG)))
        ca, admin = self._ca("server-ca").cert, pki.Pair(self._tls / "client-admin")
        pki.write_private(target, kubeconfig(url, ca, admin, embed=True), mode)
        for name in ("admin", "controller", "scheduler"):
            pair = pki.Pair(self._tls / f"client-{name}")
            pki.write_private(self._settings.server / "cred" / f"{name}.kubeconfig", kubeconfig(url, ca, pair))

    def _api_server(self) -> list[str]:
        tls, secrets_file = self._tls, self._settings.server / "cred" / "encryption-config.json"
        encryption = [f"--encryption-provider-config={secrets_file}"] if secrets_file.exists() else []
        return [
            component("kube-apiserver"), f"--advertise-address={self._address}", f"--secure-port={API_PORT}",
            f"--join-socket={self._join_socket}", *self._datastore.api_flags(),
            f"--tls-cert-file={tls}/serving-kube-apiserver.crt",
            f"--tls-private-key-file={tls}/serving-kube-apiserver.key",
            f"--client-ca-file={tls}/client-ca.crt", "--anonymous-auth=false", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            f"--kubelet-certificate-authority={tls}/server-ca.crt",
            f"--kubelet-client-certificate={tls}/client-kube-apiserver.crt",
            f"--kubelet-client-key={tls}/client-kube-apiserver.key",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            f"--service-cluster-ip-range={self._settings.service_cidr}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={tls}/service.key", f"--service-account-signing-key-file={tls}/service.key",
            f"--requestheader-client-ca-file={tls}/request-header-ca.crt",
            "--requestheader-allowed-names=system:auth-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User", f"--proxy-client-cert-file={tls}/client-auth-proxy.crt",
            f"--proxy-client-key-file={tls}/client-auth-proxy.key", "--profiling=false", *encryption,
            *extra(self._settings, "kube-apiserver-arg"),
        ]  # fmt: skip

    def _controller_manager(self) -> list[str]:
        tls, config = self._tls, self._settings.server / "cred" / "controller.kubeconfig"
        return [
            component("kube-controller-manager"), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", "--allocate-node-cidrs=true",
            f"--cluster-cidr={self._settings.cluster_cidr}",
            f"--service-cluster-ip-range={self._settings.service_cidr}", "--use-service-account-credentials=true",
            f"--root-ca-file={tls}/server-ca.crt",
            f"--service-account-private-key-file={tls}/service.key", "--profiling=false",
            *self._datastore.election_flags(),
            *extra(self._settings, "kube-controller-manager-arg"),
        ]  # fmt: skip

    def _scheduler(self) -> list[str]:
        config = self._settings.server / "cred" / "scheduler.kubeconfig"
        return [
            component("kube-scheduler"), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", "--profiling=false",
            *self._datastore.election_flags(), *extra(self._settings, "kube-scheduler-arg"),
        ]  # fmt: skip

    def _ready(self) -> bool:
        return answers(f"https://127.0.0.1:{API_PORT}/readyz", self._ca("server-ca"), self._tls / "client-admin")

    def _etcd_ready(self) -> bool:
        return answers("https://127.0.0.1:2379/health", self._ca("etcd/server-ca"), self._tls / "etcd" / "client")

    def _node_certificates(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sign a node's certificates, for its kubelet, kube-proxy and controller of network policies."""
        name, addresses = str(body["name"]), [str(address) for address in body["addresses"]]
        self._nodes.require(name, str(body["password"]))
        client, server = self._ca("client-ca"), self._ca("server-ca")
        names = [name, "localhost", "127.0.0.1", *addresses]
        return {
            "client-kubelet": pki.sign(body["client-kubelet"], client, f"/O=system:nodes/CN=system:node:{name}"),
            "client-kube-proxy": pki.sign(body["client-kube-proxy"], client, "/CN=system:kube-proxy"),
            "client-k3s-controller": pki.sign(body["client-k3s-controller"], client, "/CN=system:k3s-controller"),
            "serving-kubelet": pki.sign(body["serving-kubelet"], server, f"/CN={name}", names),
            "client-ca": client.cert.read_text(),
            "cluster-cidr": self._settings.cluster_cidr, "service-cidr": self._settings.service_cidr,
        }  # fmt: skip


def api_context(ca: Path, pair: pki.Pair) -> Any:
    """Return the TLS settings of a client of the API server."""
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(pair.cert, pair.key)
    return context


def answers(url: str, ca: pki.Pair, client: Path) -> bool:
    """Return whether a server answers that it is well to a client with this certificate."""
    try:
        with urllib.request.urlopen(url, context=api_context(ca.cert, pki.Pair(client)), timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def kubeconfig(url: str, ca: Path, pair: pki.Pair, *, embed: bool = False) -> str:
    """Return a kubeconfig with K3s's names, which contains the keys (``embed``) or their paths."""

    def entry(key: str, path: Path) -> dict[str, str]:
        return {f"{key}-data": base64.b64encode(path.read_bytes()).decode()} if embed else {key: str(path)}

    user = {**entry("client-certificate", pair.cert), **entry("client-key", pair.key)}
    return yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "default", "preferences": {},
        "clusters": [{"name": "default", "cluster": {"server": url, **entry("certificate-authority", ca)}}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "users": [{"name": "default", "user": user}],
    })  # fmt: skip

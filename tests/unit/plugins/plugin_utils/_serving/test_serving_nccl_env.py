# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.nccl_env import lint_env
from stored import compare, said, say_words

INLINE, PREPOST = "NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS"
HCAS = ["rocep1s0f0v0", "roceP2p1s0f0v0"]
NETDEVS = ["lo", "eth0", "net1", "net2"]
GOOD = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_NET": "IB",
    "NCCL_IB_HCA": "=rocep1s0f0v0,roceP2p1s0f0v0",
    "NCCL_SOCKET_IFNAME": "=net1",
}


def rules(env: dict[str, str], rdma: bool = True) -> set[str]:
    found = lint_env(env, expect_rdma=rdma, hcas=HCAS, netdevs=NETDEVS)
    return {f"{f.severity}:{f.rule.removeprefix('nccl.env.')}:{f.key}" for f in found}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"NCCL_IB_DISABLE": "1"}, {"error:disabled:NCCL_IB_DISABLE", "error:contradiction:NCCL_NET"}),
        ({"NCCL_IB_DISABLE": "0"}, {"info:noop:NCCL_IB_DISABLE"}),
        # strtoll in NCCL's param.cc reads these as 0, as 8, and as too large a number, for which it takes the default.
        ({"NCCL_IB_DISABLE": "true"}, {"error:integer:NCCL_IB_DISABLE"}),
        ({"NCCL_IB_DISABLE": "0x"}, {"error:integer:NCCL_IB_DISABLE"}),
        ({"NCCL_IB_DISABLE": "010"}, {"error:disabled:NCCL_IB_DISABLE", "error:contradiction:NCCL_NET"}),
        ({"NCCL_IB_DISABLE": "9" * 30}, set()),
        ({"NCCL_IB_DISABLE": ""}, {"info:noop:NCCL_IB_DISABLE"}),
        ({"NCCL_IB_GID_INDEX": "high"}, {"error:integer:NCCL_IB_GID_INDEX", "error:gid_index:NCCL_IB_GID_INDEX"}),
        ({INLINE: "yes", PREPOST: "1"}, {f"error:integer:{INLINE}"}),
        ({"NCCL_NET": ""}, {"error:empty:NCCL_NET"}),
        ({"NCCL_NET": "Socket"}, {"error:socket:NCCL_NET", "info:noop:NCCL_IB_HCA"}),
        (
            {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "0"},
            {"error:socket:NCCL_NET", "info:noop:NCCL_IB_HCA", "info:noop:NCCL_IB_DISABLE"},
        ),
        ({"NCCL_NET": "IBext_v10"}, set()),
        ({"NCCL_NET": '"IB"'}, {"error:quoted:NCCL_NET"}),
        ({"NCCL_NET": "IB "}, {"error:quoted:NCCL_NET"}),
        ({"NCCL_TIMEOUT": "60"}, {"warning:unknown:NCCL_TIMEOUT"}),
        ({"NCCL_IB_HCAS": "x"}, {"warning:unknown:NCCL_IB_HCAS"}),
        ({"NCCL_UCX_TLS": "x", "IB_HCA": "y"}, set()),
        ({"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_MNNVL": "1"}, set()),
        ({"NCCL_IB_GID_INDEX": "3"}, {"error:gid_index:NCCL_IB_GID_INDEX"}),
        ({"NCCL_IB_GID_INDEX": "-1"}, set()),
        ({"NCCL_IB_TC": ""}, {"info:noop:NCCL_IB_TC"}),
        ({"NCCL_IB_TC": "0x6a"}, set()),
        ({"NCCL_IB_TC": "high"}, {"error:integer:NCCL_IB_TC"}),
        ({"NCCL_IB_HCA": "net1,net2"}, {"error:wrong_kind:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": "mlx5_0"}, {"error:no_match:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": "^roce"}, {"error:no_match:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": "^mlx5"}, set()),
        ({"NCCL_IB_HCA": "rocep1s0f0v0,roceP2p1s0f0v0"}, set()),
        ({"NCCL_IB_HCA": "=rocep1s0f0v0:1,roceP2p1s0f0v0:1"}, set()),
        ({"NCCL_IB_HCA": "=rocep1s0f0v0, roceP2p1s0f0v0"}, {"error:blank:NCCL_IB_HCA", "warning:unused:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": "=rocep1s0f0v0"}, {"warning:unused:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": "^=rocep1s0f0v0"}, {"warning:unused:NCCL_IB_HCA"}),
        ({"NCCL_IB_HCA": ""}, {"warning:empty:NCCL_IB_HCA"}),
        ({"NCCL_SOCKET_IFNAME": "rocep1s0f0v0"}, {"error:wrong_kind:NCCL_SOCKET_IFNAME"}),
        ({"NCCL_SOCKET_IFNAME": "wlan0"}, {"error:no_match:NCCL_SOCKET_IFNAME"}),
        ({"NCCL_DEBUG": "WARN"}, {"warning:silent:NCCL_DEBUG"}),
        ({"NCCL_DEBUG": "trace"}, set()),
        # test_nccl_blinders has the other values.
        ({"NCCL_DEBUG_SUBSYS": "INIT"}, {"warning:masked:NCCL_DEBUG_SUBSYS"}),
        ({"NCCL_DEBUG_SUBSYS": "^NET"}, {"warning:masked:NCCL_DEBUG_SUBSYS"}),
        ({"NCCL_HOSTID": "x"}, {"warning:host_id:NCCL_HOSTID"}),
        ({"NCCL_CONF_FILE": "/c"}, {"warning:conf_file:NCCL_CONF_FILE"}),
        ({"NCCL_DEBUG_SUBSYS": "^COLL"}, set()),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, {"warning:presence:CUDA_LAUNCH_BLOCKING"}),
        ({"GLOO_SOCKET_IFNAME": ""}, set()),
        ({"GLOO_SOCKET_IFNAME": "=net1"}, {"error:gloo:GLOO_SOCKET_IFNAME"}),
        ({"GLOO_SOCKET_IFNAME": "net1,net7"}, {"error:gloo_missing:GLOO_SOCKET_IFNAME"}),
        ({INLINE: "1", PREPOST: "1"}, {f"error:inline:{INLINE}"}),
        ({INLINE: "1", PREPOST: "0"}, set()),
    ],
)
def test_a_mistake_gives_its_findings_and_no_others(change: dict[str, str], expected: set[str]) -> None:
    assert rules(GOOD | change) == expected


# More than one mistake of a kind, and values at the bounds of what NCCL reads.
MORE: list[dict[str, str]] = [
    {"NCCL_TIMEOUT": "60", "NCCL_IB_HCAS": "x", "NCCL_BLOCKING_WAIT": "1", "NCCL_ZZZZZZZZ": "1", "NCCL_UCX_A": "1"},
    {"NCCL_IB_TC": "", "NCCL_IB_SL": "", "NCCL_IB_TIMEOUT": "x", "NCCL_IB_RETRY_CNT": " 7 ", "NCCL_BUFFSIZE": "1k"},
    {"NCCL_ALGO": " Ring", "NCCL_PROTO": '"LL"', "NCCL_TOPO_FILE": "'/a'", "NCCL_DEBUG_FILE": "/a", "OTHER": ' "a"'},
    {"NCCL_IB_GID_INDEX": "0"},
    {"NCCL_IB_GID_INDEX": " +0x1F"},
    {"NCCL_IB_GID_INDEX": "-9223372036854775808"},
    {"NCCL_IB_GID_INDEX": "9223372036854775807"},
    {"NCCL_IB_GID_INDEX": "9223372036854775808"},
    {"NCCL_IB_DISABLE": " 0 ", "NCCL_NET": "ib"},
    {"NCCL_IB_DISABLE": "2", "NCCL_NET": "IBext", "NCCL_NET_PLUGIN": "none"},
    {"NCCL_IB_DISABLE": "-1", "NCCL_NET": "Other"},
    {"NCCL_NET": "SOCKET", "NCCL_IB_HCA": ""},
    {"NCCL_IB_HCA": "mlx5_0,eth0,wlan0", "NCCL_SOCKET_IFNAME": "roceP2p1s0f0v0,mlx5_0"},
    {"NCCL_IB_HCA": "^rocep1s0f0v0,net9", "NCCL_SOCKET_IFNAME": "^net"},
    {"NCCL_IB_HCA": "^=roceP2p1s0f0v0:1,,rocep1s0f0v0:2", "NCCL_SOCKET_IFNAME": "="},
    {"NCCL_IB_HCA": "roce", "NCCL_SOCKET_IFNAME": "net, eth"},
    {"NCCL_IB_HCA": "=", "NCCL_SOCKET_IFNAME": "=net1,net2,lo"},
    {"NCCL_SOCKET_IFNAME": "net"},
    {"GLOO_SOCKET_IFNAME": "net7,net1,net8,"},
    {"GLOO_SOCKET_IFNAME": "^lo", INLINE: "0x1", PREPOST: "2"},
    {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_CONF_FILE": "/c", "CUDA_LAUNCH_BLOCKING": ""},
]
MANY = ["rocep1s0f0v0", "rocep1s0f0v01", "roceP2p1s0f0v0", "net1"]
SEEN: dict[str, tuple[bool, list[str], list[str]]] = {
    "RDMA": (True, HCAS, NETDEVS),
    "RDMA, unknown devices": (True, [], []),
    "RDMA, similar names": (True, MANY, ["net1", "net11"]),
    "TCP": (False, HCAS, NETDEVS),
}


def test_findings_about_environments_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    quiet = {"NCCL_DEBUG": "INFO"}
    cases = {
        f"{given} {name}": said(lint_env(quiet | given, expect_rdma=rdma, hcas=hcas, netdevs=netdevs, where="rank 1"))
        for given in MORE
        for name, (rdma, hcas, netdevs) in SEEN.items()
    }
    compare("serving_environments", cases)

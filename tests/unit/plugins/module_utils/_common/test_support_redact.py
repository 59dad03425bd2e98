# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that secrets are removed in every notation in which logs and configuration have them, and other text is not."""

import base64
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact

HIDDEN = "hunter2zwei"
SLOW = ["-", "token: ", 'token: "a ', "token_", "key: {", "keys: {shared: a, ", "#a ", "authorization: a,a=", "&sig"]
SLOW += [
    "password 1 ",
    " -u a",
    "$6$",
    '{"name": "token", "value": ',
    "- name: token\n",
    "<token>",
    "https://a",
    "a: 1\n\n",
]
SLOW += [
    "-----BEGIN PRIVATE KEY-----",
    "Private-Lines: ",
    "mysql ",
    "kind: Secret\ndata:\n a\n",
    "kind: Secret data: {",
    "wpa_passphrase ",
    "docker login ",
    "$ANSIBLE_VAULT;1 abcdefab ",
    "echo ",
    "echo a |",
    "['token'] ",
    "password\n",
    "--token - ",
]
SLOW += ["://:a", "eyJaaaaaaaaa-", "A" * 20 + "\n", "\\", "--token ", " ", "{'token': '"]
LOGS = Path(__file__).resolve().parents[3] / "fixtures/nccl/real"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"password": "a {HIDDEN} c", "x": 1}}',
        f"password = 'my, {HIDDEN}' and more",
        f'wifis: {{w: {{access-points: {{Home: {{password: "{HIDDEN}"}}}}}}}}',
        f"  - sae-password: two words, {HIDDEN}",
        f"password: |\n\n    one\n    {HIDDEN}\nmtu: 9000",
        f"auth:\n  key-management: psk\n  password: {HIDDEN}\nmtu: 9000",
        f"peers:\n  - keys:\n      private: {HIDDEN}",
        f"AWS_SECRET_ACCESS_KEY={HIDDEN} X_TOKEN={HIDDEN}",
        f"--token={HIDDEN} --api-key {HIDDEN}",
        f'["--api-key", "{HIDDEN}", "--tp", "4"]',
        f"Authorization: Bearer {HIDDEN}",
        f"Cookie: {HIDDEN}",
        f"pull https://robot:{HIDDEN}@registry.example/v2",
        f"hf_{HIDDEN} ghp_{HIDDEN} K10{'0a' * 32}::server:{HIDDEN}",
        f"-----BEGIN EC PRIVATE KEY-----\n{HIDDEN}\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN} (cut off)",
        f"{HIDDEN}{'A' * 20}\nABCDEFGHABCDEFGH\n-----END PRIVATE KEY-----",
        # the last lines of a log, as another program shows them
        f"    {HIDDEN}{'A' * 20}\n    ABCDEFGHABCDEFGH\n    AB==\n    -----END PRIVATE KEY-----",
        f"Nov 25 10:00:00 spark1 k3s[1]: {HIDDEN}{'A' * 20}\nNov 25 10:00:00 spark1 k3s[1]: -----END PRIVATE KEY-----",
        f"{{password: correct {HIDDEN} staple}}",
        f"w: {{access-points: {{Home: {{password: correct {HIDDEN} staple}}}}, mtu: 9000}}",
        f"{{auth: {{key-management: psk, password: two {HIDDEN} words}}, x: {{mtu: 9000}}}}",
        f'{{auth: {{password: "a, {HIDDEN} b"}}}}',
        f"password: ab{{c {HIDDEN}",
        f"password: correct\n  {HIDDEN} staple\nmtu: 9000",
        f"the login password: correct {HIDDEN} staple",
        f'"password": "a\\"{HIDDEN}", "x": 1',
        f"{{password: 'it''s {HIDDEN}', x: 1}}",
        f'{{"msg": "{{\\"password\\": \\"{HIDDEN} b\\", \\"x\\": 1}}"}}',
        f'{{"token": ["a", "{HIDDEN}"]}}',
        f"pass: {HIDDEN}",
        f"DB_PASS={HIDDEN}",
        f"MYSQL_PWD={HIDDEN} pwd={HIDDEN} dbpass={HIDDEN}",
        f"ansible_become_pass={HIDDEN}",
        f'{{"ansible_ssh_pass":"{HIDDEN}"}}',
        f"sshpass --ssh-pass {HIDDEN}",
        f"Authorization: Token {HIDDEN}",
        f"Authorization: {HIDDEN}",
        f'curl -H "Authorization: Custom {HIDDEN}" http://spark1',
        f"{{'Authorization': 'Token {HIDDEN}', 'x': 1}}",
        f'Authorization: Token token="{HIDDEN}", nonce="{HIDDEN}"',
        f"authorization: AWS4-HMAC-SHA256 Credential=A/{HIDDEN}, SignedHeaders=host, Signature={HIDDEN}",
        f"GET / Cookie: a=1; b={HIDDEN}",
        f"nvapi-{HIDDEN} github_pat_{HIDDEN}",
        f"https://s3.example/x?X-Amz-Credential={HIDDEN}&X-Amz-Signature={HIDDEN}",
        f"https://s3.example/x?X-Amz-Expires=60&X-Amz-Signature={HIDDEN}&a=1",
        f"https://blob.example/x?sv=1\\u0026sig={HIDDEN}",
        f"https://hooks.slack.com/services/T0000/B0000/{HIDDEN}",
        f"redis://:{HIDDEN}@spark1:6379",
        f"peers:\n  - keys:\n      public: abc=\n      shared: {HIDDEN}\nmtu: 9000",
        f"peers: [{{keys: {{public: abc=, shared: {HIDDEN}}}, mtu: 9000}}]",
        f"keys: {{\n  public: abc=, shared: {HIDDEN},\n  x: 1, private: {HIDDEN}}}\nmtu: 9000",
        f"env:\n- name: HF_TOKEN\n  value: {HIDDEN}\n- name: A_PASS\n  value: |\n    a\n    {HIDDEN}\nmtu: 9000",
        f'{{"name":"HF_TOKEN","value":"{HIDDEN}"}}, {{\\"name\\": \\"A_KEY\\", \\"value\\": \\"a {HIDDEN}\\"}}',
        f"apiVersion: v1\ndata:\n  words: {HIDDEN}\n\n  more: |\n    {HIDDEN}\nkind: Secret\nmtu: 9000",
        f'{{"data":{{"words":"{HIDDEN}"}},"kind":"Secret"}}',
        f'{{\\"kind\\": \\"Secret\\", \\"stringData\\": {{\\"words\\": \\"{HIDDEN}\\"}}}}',
        f".dockerconfigjson: {HIDDEN}",
        f"args:\n  - --hf-token\n  - {HIDDEN}\n  - --tp",
        f"passwords:\n- {HIDDEN}\n- {HIDDEN}\nmtu: 9000",
        f'"api_keys": [\n "a",\n "{HIDDEN}"\n]',
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{HIDDEN}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
        f"{HIDDEN}{'A' * 20}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
        f"-----BEGIN OpenVPN Static key V1-----\n{HIDDEN}\n-----END OpenVPN Static key V1-----",
        f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{HIDDEN}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        f"root:$6$salt${HIDDEN}:19000:0:99999:7::: robot:$apr1$abc${HIDDEN} $2y$10${HIDDEN}",
        f"dckr_pat_{HIDDEN} npm_{HIDDEN} hvs.{HIDDEN} AIza{HIDDEN} AGE-SECRET-KEY-1{HIDDEN}",
        f"AccountName=a;AccountKey={HIDDEN}==;EndpointSuffix=x GH_PAT={HIDDEN}",
        f"https://{HIDDEN}{HIDDEN}@git.lan/x https://api.telegram.org/bot123456:{HIDDEN}{HIDDEN}/send",
        f"https://a.webhook.office.com/webhookb2/1@2/IncomingWebhook/{HIDDEN}",
        f"sshpass -p {HIDDEN} ssh a; curl -u user:{HIDDEN} https://r.lan; wpa_passphrase Home {HIDDEN}",
        f"nmcli dev wifi connect Home password {HIDDEN}",
        f"machine r.lan login robot password {HIDDEN}",
        f"wrong password {HIDDEN} for user; Incorrect API key provided: {HIDDEN}.",
        f"<password>{HIDDEN}</password>",
        f"docker login -u robot -p {HIDDEN} r.lan; ipmitool -I lanplus -U a -P {HIDDEN} power status",
        f"skopeo copy --src-creds robot:{HIDDEN} docker://r.lan/x dir:y; crictl pull --creds robot:{HIDDEN} r.lan/x",
        f"mysql -u root -p{HIDDEN} db; mysqldump --user=a -p{HIDDEN} db",
        f"Private-Lines: 2\n{HIDDEN}{'A' * 20}\nABCD\nPrivate-MAC: 0a1b\nmtu: 9000",
        f"{HIDDEN}{'A' * 20}\nABCD\nPrivate-MAC: 0a1b\nmtu: 9000",
        f"wg set wg0 peer x preshared-key <(echo {HIDDEN}{'A' * 32}=) endpoint 10.0.0.1:51820",
        f"kubectl create secret generic x --from-literal=words={HIDDEN}",
        f"echo {HIDDEN} | sudo -S apt-get update",
        f"echo nvidia:{HIDDEN} | chpasswd; printf %s {HIDDEN} | docker login r.lan --password-stdin",
        f"os.environ['HF_TOKEN'] = '{HIDDEN}'",
        f"wpa_cli set_network 0 psk '\"{HIDDEN}\"'",
        f"redis://:{HIDDEN}/1@10.0.0.1:6379/0 https://discord.com/api/v10/webhooks/1/{HIDDEN}",
        f"tskey-auth-{HIDDEN} syt_{HIDDEN} gsk_{HIDDEN} SG.{HIDDEN}",
        f"root=/dev/x cryptopw={HIDDEN}",
        f"wep-key0={HIDDEN} bindpw: {HIDDEN}",
        f"modems:\n  wwan0:\n    pin: {HIDDEN}\nmtu: 9000",
        f"the value is known: {HIDDEN} {base64.b64encode(HIDDEN.encode()).decode()}",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    known = [HIDDEN, "no"] if "known" in text else []
    said = redact(text, known)
    assert HIDDEN not in said and base64.b64encode(HIDDEN.encode()).decode() not in said
    assert "<removed>" in said and "<removed>>" not in said
    assert "mtu: 9000" in said or "mtu" not in text
    assert redact(said, known) == said


@pytest.mark.parametrize("token", [f"hf_{HIDDEN}AbCdEfGhIj", f"ghp_{HIDDEN}AbCdEfGhIj", f"eyJhbGciOiJ9.{HIDDEN}AbCdEf"])
def test_a_known_form_of_a_token_is_removed_in_base64(token: str) -> None:
    assert redact(f"value: {base64.b64encode(token.encode()).decode()} and more") == "value: <removed> and more"


@pytest.mark.parametrize("form", ['a "b" c@d', "a%20%22b%22%20c%40d", r"a \"b\" c@d", "YSAiYiIgY0Bk"])
def test_a_known_value_is_removed_in_every_encoding(form: str) -> None:
    assert redact(f"read {form} there", ['a "b" c@d']) == "read <removed> there"


def test_a_password_without_a_digit_in_a_netrc_is_removed() -> None:
    said = redact("machine r.lan\n  login robot\n  password hunter\nmachine s.lan")
    assert said == "machine r.lan\n  login robot\n  password <removed>\nmachine s.lan"


@pytest.mark.parametrize("gap", ["\n    ", "\\n"])
def test_what_ansible_vault_encrypted_is_removed(gap: str) -> None:
    text = gap.join(["a: !vault |", "$ANSIBLE_VAULT;1.2;AES256;prod", "6231336539", "66623430", "b: 1"])
    assert redact(text) == gap.join(["a: !vault |", "$ANSIBLE_VAULT;1.2;AES256;prod", "<removed>", "b: 1"])


@pytest.mark.parametrize(
    "text",
    ["api_key: 4711471", "token=1234567", '{"api_key": "4711", "x": 1}', "DB_PASS=4711", "pass: 4711", "psk: 12"],
)
def test_a_secret_may_be_a_number(text: str) -> None:
    assert "<removed>" in redact(text) and "4711" not in redact(text) and "12" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-token: 12, #cached-token: 0, token usage: 0.31, max_total_num_tokens=1234",
        "api_key=None, hf_token=None, disable_cuda_graph=False",
        "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
        "network: {ethernets: {enp1s0f0np0: {mtu: 9000, virtual-function-count: 2}}}",
        "#token: 12, #full token: 123456, full token usage: 0.42, #new-token: 8192, num_token=4096",
        "tokens: 64",
        "docker run --user 1000:1000 -u 0:0 x",
        "ssh -p 22 login@spark1; docker run -p 80:80 x; echo 3 | tee drop_caches",
        "docker://r.lan:5000/sglang@sha256:0123456789abcdef",
        f"SHA256:{'a' * 43} {'0' * 64} mysqld -p 3306",
        "a password for user is wrong; password authentication failed; with token bucket",
        'failed to sync secret cache: secret "gb10-1" not found',
        "kind: ConfigMap\ndata:\n  a: b",
        "- name: NCCL_DEBUG\n  value: INFO",
        '{"name": "key", "values": ["a"]}',
        "max_tokens=128 token_count: 1234567",
        "4096 new tokens: 12",
        "token usage: 0.42",
        "pass: 3 of 4 checks",
        'pass=3 fail=0 {"pass": true}',
        "passed: 12",
        "pass-through: on",
        "bypass: true bypass=/dev/x compass: north",
        "keys: [a, b]",
        "keys:\n  - a\n  - b",
        "shared: 12 MiB",
        "root@spark1:~# pwd\n/root",
        "user : TTY=pts/0 ; PWD=/home/user ; USER=root ; COMMAND=/usr/bin/id",
        "keys:\n  public: abc=\nshared: gb10",
        "the signature: ok sig=11 authorization-mode=Node,RBAC",
        '{"key": {"a": 1}}',
        "NCCL INFO NET/IB: qpn=263 mtu=5 fifoRkey=0x1 fifoLkey=0x2 LID=0",
        "NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 commId 0x2 - Init START",
        "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
    ],
)
def test_what_explains_a_fault_is_kept(text: str) -> None:
    assert redact(text) == text


def test_a_secret_in_a_list_does_not_hide_the_next_item() -> None:
    said = redact("- password: one\n    two\n  mtu: 9000\n- Authorization: Bearer three status=401")
    assert said == "- password: <removed>\n  mtu: 9000\n- Authorization: Bearer <removed> status=401"


def test_only_the_values_of_a_secret_are_removed() -> None:
    said = redact("- data:\n    a: b\n\n    c: |\n      d\n  kind: Secret\n- stringData: {a: b}\n  type: Opaque")
    assert said == "- data: <removed>\n  kind: Secret\n- stringData: <removed>\n  type: Opaque"


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_a_real_log_keeps_all_but_the_password_of_a_key_file(name: str) -> None:
    text = (LOGS / name).read_text(encoding="utf-8")
    assert redact(text) == text.replace("ssl_keyfile_password=None", "ssl_keyfile_password=<removed>")


@pytest.mark.parametrize("part", SLOW)
def test_the_time_grows_with_the_length_and_not_faster(part: str) -> None:
    def took(length: int) -> float:
        start = time.process_time()
        redact(part * (length // len(part)))
        return time.process_time() - start

    # A quadratic search takes 64 times as long.
    assert took(32_000) < 25 * max(took(4_000), 0.005)

"""The bundle of `provisioner doctor`: it contains no secret, in any file and any notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tarfile import open as open_tar

import pytest

from provisioner.commands import doctor
from provisioner.commands.doctor import PartResult, write_bundle
from provisioner.commands.redaction import WITHHELD, cleaned, mask_secrets

SECRET = "hunter2"
HEX = "3f79bb7b435b05321651daefd374cdc681dc06fa"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
SHAPES = {
    "a setting": f"password: {SECRET}",
    "a quoted setting": f'password: "{SECRET}"',
    "a setting with an escape": f'"password": "a\\"{SECRET}", "id": 1',
    "single quotes": f"'secret' = '{SECRET}'",
    "a passphrase with spaces": f"passphrase: correct horse {SECRET} battery",
    "a number": "pin_secret: 7264837",
    "an exported variable": f"export API_KEY={SECRET} x",
    "a variable of the environment": f"DB_PASS={SECRET}",
    "block YAML": f"password: |\n  first\n  {SECRET}\nid: demo",
    "folded YAML": f"token: >-\n    first\n\n    {SECRET}",
    "a list": f"passwords:\n- first\n- {SECRET}",
    "a mapping": f"secret:\n  inner:\n    x: {SECRET}",
    "a pair of name and value": f"env:\n- name: DB_PASSWORD\n  value: {SECRET}",
    "a pair of value and name": f"env:\n- value: {SECRET}\n  name: DB_PASSWORD",
    "a pair in JSON": f'{{"name": "TOKEN", "value": "{SECRET}"}}',
    "a pair in XML": f'<property name="password" value="{SECRET}"/>',
    "an element of XML": f"<password>{SECRET}</password>",
    "Basic": f"Authorization: Basic {SECRET}aA==",
    "Basic without its header": "401 for Basic aHVudGVyMjpodW50ZXIy",
    "Bearer": f"Authorization: Bearer {SECRET}.a-b",
    "Bearer in an exception": f"HTTPError: 401 for {{'Authorization': 'Bearer {SECRET}'}}",
    "a cookie": f"Set-Cookie: sid={SECRET}; Path=/",
    "a header of a key": f"X-Api-Key: {SECRET}",
    "an address with a login": f"proxy: http://me:{SECRET}@proxy:3128/",
    "an address whose password has an @": f"http://me:p@{SECRET}@proxy:3128/",
    "an address whose password has a /": f"http://me:p/{SECRET}@proxy:3128/",
    "a login without a scheme": f"Failed to parse: me:{SECRET}@proxy:3128",
    "a query": f"GET https://host/x?key={SECRET}&alt=json",
    "a private key": f"a\n{KEY}\nb",
    "a private key without its end": KEY.partition("-----END")[0],
    "a private key in JSON": json.dumps({"private_key": KEY}),
    "client-key-data": f"users:\n- name: me\n  user:\n    client-key-data: LS0tLS1CRUdJTiBSU0E{SECRET}",
    "a Docker login": f'{{"auths": {{"reg": {{"auth": "{SECRET}"}}}}}}',
    "an option": f"mysql --password={SECRET} -h db",
    "an option and its word": f"mysql --password {SECRET} -h db",
    "curl's user": f"curl -u me:{SECRET} https://host/",
    "netrc": f"machine host login me password {SECRET}",
    "a connection string": f"Server=db;User Id=me;Password={SECRET};",
    "an escaped document": f'body: "{{\\"password\\": \\"{SECRET}\\"}}"',
    "user data": f"userData: {SECRET}",
    "an access token": f"refused ya29.{SECRET}abcdefgh",
    "a token of GitLab": f"refused glpat-{SECRET}-abcdefghijkl",
    "a token of Vault": f"refused hvs.{SECRET}CAESIJabcdef",
    "a token of Slack": f"refused xoxb-{SECRET}-123456789012",
    "a key that begins with sk": f"refused sk-{SECRET}abcdefghijklmnop",
    "a key that begins with sk and is not mixed": f"sk-proj-{SECRET}abcdefghijklmnop",
    "a token of 40 hexadecimal digits": f"refused {HEX} at the second try",
    "a token of 40 hexadecimal digits alone": HEX,
    "the password of sshpass": f"sshpass -p {SECRET} ssh host",
    "the password of sshpass without a space": f"sshpass -p{SECRET} ssh host",
    "credentials": f"credentials: {SECRET}",
    "a key of some kind": f"sharedKey = {SECRET}",
    "a PIN": f"PIN: {SECRET}",
    "a Secret's data": f"kind: Secret\nstringData:\n  db: {SECRET}",
    "an element over lines": f"<secret>\n{SECRET}\n</secret>",
    "a text of TOML": f'password = """\n{SECRET}\n"""',
    "a tuple of a header": f"('X-Api-Key', '{SECRET}')",
    "a token in a sentence": f"invalid token {SECRET}",
    "a password in a sentence": f"the password is {SECRET}",
    "Oracle's address": f"jdbc:oracle:thin:me/{SECRET}@//host:1521/db",
    "an address encoded": f"https://host/login%3Fpassword%3D{SECRET}",
    "random letters and digits": f"the key AbCdEf0123{SECRET}GhIjKlMnOpQr was refused",
    "a wrong setting": f"pools.a.namespace: expected a name, got '{SECRET}'",
    "a misread setting": f"pools.a.namespace: expected a name, got ['x', '{SECRET}', 3]",
}
"""Forms in which a secret may stand in a text or a file."""

HIDDEN = (SECRET, HEX, "7264837", "aHVudGVy", "GhIjKlMnOpQr", "MIIEpAIBAAKCAQEA")


def left(text: str) -> list[str]:
    return [secret for secret in HIDDEN if secret in text]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_is_masked_in_a_text(shape: str) -> None:
    assert left(mask_secrets(SHAPES[shape])) == []


@pytest.mark.parametrize(
    "text",
    [
        "hf-0123456789-000001 is lost: preempted",
        "sk-0123456789-000001",
        "sk-grid-prod-0123456789-000001",
        "hf-sk-prod-bratislava-0123456789-000001 was deleted",
        "hf-sk-prod-bratislava-0123456789",
        "glpat-grid-0123456789-000001.c.grid.internal is lost",
        "the risk-based and task-oriented checks-that-are-long-enough-to-count",
        "token_file: /etc/token",
        "pools.a.credentials: /etc/federation.json: no such file",
        "server.tls_key: /etc/tls.pem: Permission denied",
        "pools.a.pod_spec: /etc/hostfactory/pod-specs/spot.yaml: no such file",
        "fine: 2 passed, and the author of 12:00:05 is unknown",
        "Quota 'CPUS' exceeded. Limit: 24.0 in region us-central1.",
        "projects/my-project/zones/us-central1-a/instanceGroupManagers/hf-a",
        "sha256 3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea",
    ],
)
def test_other_text_is_left(text: str) -> None:
    assert mask_secrets(text) == text


def test_after_a_secret_the_text_goes_on() -> None:
    assert mask_secrets("password: |\n  a\nid: demo") == f"password: {WITHHELD}\n  {WITHHELD}\nid: demo"


def test_a_document_of_ours_loses_what_is_named_as_a_secret_alone() -> None:
    document = {"message": "refused: token=x", "facts": [{"machine": "m-1", "count": 3, "client_secret": {"a": "b"}}]}
    assert cleaned(document) == {
        "message": f"refused: token={WITHHELD}",
        "facts": [{"machine": "m-1", "count": 3, "client_secret": WITHHELD}],
    }


# --- the whole bundle -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the list of versions, because a process would have to be started to find the system's version."""
    monkeypatch.setattr(doctor, "versions", lambda: "")


def bundled(directory: Path, files: Mapping[str, str], *answers: str) -> dict[str, str]:
    """Write the bundle of an instance with these files, and return the bundle's texts by name. ``answers``: output of
    the parts of `doctor`."""
    for name in ("conf", "state", "logs"):
        (directory / name).mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    environment = {
        "HF_PROVIDER_NAME": "demo",
        "HF_PROVIDER_CONFDIR": str(directory / "conf"),
        "HF_PROVIDER_WORKDIR": str(directory / "state"),
        "HF_PROVIDER_LOGDIR": str(directory / "logs"),
    }
    results = [PartResult(f"part {number}", "", False, text) for number, text in enumerate(answers)]
    write_bundle(directory / "bundle.tar.gz", results, environment)
    with open_tar(directory / "bundle.tar.gz") as packed:
        return {one.name: packed.extractfile(one).read().decode() for one in packed}  # type: ignore[union-attr]


PLACES = (
    "conf/provisioner.yaml",
    "conf/demoprov_config.json",
    "conf/demoprov_templates.json",
    "conf/kubeconfig",
    "conf/credentials.json",
    "conf/environment",
    "state/credentials.json",
    "state/intent.json",
    "state/journal.jsonl",
    "logs/demo-provider.host.log",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_file_of_the_bundle_holds_a_secret_whichever_holds_it_and_the_answers_neither(
    tmp_path: Path, shape: str
) -> None:
    """The bundle must contain no secret, even if each file that it could include contains the secret, and the output of
    the parts of `doctor` too."""
    text = SHAPES[shape]
    texts = bundled(tmp_path, dict.fromkeys(PLACES, text), text, f"demoprov_config.json: not JSON: {text}")

    assert {name: found for name, content in texts.items() if (found := left(content))} == {}
    assert not [name for name in texts if name.endswith(("kubeconfig", "environment", "credentials.json"))]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_log_and_a_journal_hold_no_secret_in_their_lines_of_json(tmp_path: Path, shape: str) -> None:
    line = json.dumps({"time": "now", "message": "Refused a call", "problem": SHAPES[shape]}) + "\n"
    texts = bundled(tmp_path, {"state/journal.jsonl": line, "logs/demo-provider.host.log": line})

    assert {name: found for name, content in texts.items() if (found := left(content))} == {}
    assert '"message": "Refused a call"' in texts["doctor/logs/demo-provider.host.log"]


SETTINGS = """
id: demo
name_prefix: hf
listen: 127.0.0.1:9464
loop: {interval_seconds: 5, extra: hunter2}
server: {token_file: /etc/token, token: hunter2}
pools:
  spot:
    kind: gke
    namespace: grid
    pod_spec: pod-specs/spot.yaml
    kubeconfig: /etc/hostfactory/kubeconfig
    credentials: hunter2
    endpoint: https://me:hunter2@10.0.0.1
    labels: {owner: hunter2}
  password: hunter2
database: {id: hunter2, kind: [hunter2]}
"""


def test_of_the_settings_those_stay_that_are_known_and_plain(tmp_path: Path) -> None:
    texts = bundled(tmp_path, {"conf/provisioner.yaml": SETTINGS}, "it said hunter2 to the proxy")

    assert json.loads(texts["doctor/conf/provisioner.yaml"]) == {
        "id": "demo",
        "name_prefix": "hf",
        "listen": "127.0.0.1:9464",
        "loop": {"interval_seconds": 5, "extra": WITHHELD},
        "server": {"token_file": "/etc/token", "token": WITHHELD},
        "pools": {
            "spot": {
                "kind": "gke",
                "namespace": "grid",
                "pod_spec": "pod-specs/spot.yaml",
                "kubeconfig": "/etc/hostfactory/kubeconfig",
                "credentials": WITHHELD,
                "endpoint": WITHHELD,
                "labels": WITHHELD,
            },
            "password": WITHHELD,
        },
        "database": WITHHELD,
    }
    assert texts["doctor/part-0.txt"] == f"it said {WITHHELD} to the proxy", "known from the file"


def test_of_hostfactory_s_files_those_values_stay_whose_keys_are_known(tmp_path: Path) -> None:
    config = {"LOG_LEVEL": "DEBUG", "LOG_MAX_ROTATE": 5, "GCP_CREDENTIALS_FILE": "/k.json", "DB_LOGIN": SECRET}
    template = {"templateId": "T", "maxNumber": 3, "pools": ["spot"], "vmUser": SECRET}
    template |= {"attributes": {"type": ["String", "X86_64"], "ncpus": ["Numeric", "8"], "site": ["String", SECRET]}}
    files = {
        "conf/demoprov_config.json": json.dumps(config),
        "conf/demoprov_templates.json": json.dumps({"templates": [template]}),
    }
    files = {name: "\ufeff" + text.replace(": ", ":\t") for name, text in files.items()}
    texts = bundled(tmp_path, files)

    assert json.loads(texts["doctor/conf/demoprov_config.json"]) == config | {"DB_LOGIN": WITHHELD}
    attributes = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "8"], "site": WITHHELD}
    assert json.loads(texts["doctor/conf/demoprov_templates.json"]) == {
        "templates": [template | {"vmUser": WITHHELD, "attributes": attributes}]
    }


def test_a_file_that_cannot_be_read_is_withheld_as_a_whole_and_what_the_parser_quotes_of_it(tmp_path: Path) -> None:
    texts = bundled(
        tmp_path,
        {"conf/provisioner.yaml": "password: *hunter2\n", "conf/demoprov_templates.json": "[" * 990 + "]" * 990},
        "provisioner.yaml: line 1, column 11: found undefined alias 'hunter2'",
    )

    assert texts["doctor/conf/provisioner.yaml"] == f"{WITHHELD}: neither YAML nor JSON\n"
    assert texts["doctor/conf/demoprov_templates.json"].startswith(WITHHELD)
    assert SECRET not in texts["doctor/part-0.txt"]


@pytest.mark.parametrize("path", ["config/production/provisioner.yaml", "config/demoinst/provisioner.yaml"])
def test_of_the_kits_own_settings_all_stay(path: str) -> None:
    taken: set[str] = set()
    text = (Path(__file__).parents[3] / path).read_text()

    assert WITHHELD not in doctor.configuration(text, doctor.setting_names(), taken)
    assert taken == set()

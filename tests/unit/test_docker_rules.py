"""What the docker proxy understands of a request, and what a person's words allow."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.errors import ConfigError
from operator_core.safety.docker_rules import VERBS, Denied, Rules, mighty, read_call, shown

ID = "0123456789abcdef" * 4

UNDERSTOOD = [
    ("HEAD", "/_ping", "ping"),
    ("GET", "/v1.41/version", "version"),
    ("GET", "/v1.50/containers/json?all=1&filters=%7B%22name%22%3A%5B%22web%22%5D%7D", "list"),
    ("GET", "/containers/web/json", "inspect"),
    ("GET", "/v1.41/containers/web/logs?stdout=1&stderr=1&tail=all&follow=1&since=1700000000.5", "logs"),
    ("GET", "/v1.41/containers/web/top?ps_args=-ef", "top"),
    ("GET", "/v1.41/containers/web/stats?stream=0&one-shot=1", "stats"),
    ("POST", "/v1.41/containers/web/restart?t=10", "restart"),
    ("POST", "/v1.41/containers/web/stop?t=10&signal=SIGTERM", "stop"),
    ("POST", "/v1.41/containers/web/kill?signal=HUP", "kill"),
    ("POST", "/v1.41/containers/web/start", "start"),
    ("POST", "/v1.41/containers/web/pause", "pause"),
    ("POST", "/v1.41/containers/web/unpause", "unpause"),
    ("POST", f"/v1.41/exec/{ID}/resize?h=40&w=120", "exec-resize"),
    ("GET", f"/v1.41/exec/{ID}/json", "exec-inspect"),
]

REFUSED = [
    # what docker has, and nobody can allow
    ("POST", "/v1.41/containers/create"),
    ("POST", "/v1.41/containers/create?name=web"),
    ("POST", "/v1.41/commit?container=web"),
    ("POST", "/v1.41/build"),
    ("PUT", "/v1.41/containers/web/archive?path=/"),
    ("GET", "/v1.41/containers/web/archive?path=/etc/shadow"),
    ("HEAD", "/v1.41/containers/web/archive?path=/etc/shadow"),
    ("GET", "/v1.41/containers/web/export"),
    ("GET", "/v1.41/containers/web/changes"),
    ("POST", "/v1.41/containers/web/attach?stdin=1&stream=1"),
    ("GET", "/v1.41/containers/web/attach/ws"),
    ("POST", "/v1.41/containers/web/update"),
    ("POST", "/v1.41/containers/web/rename?name=db"),
    ("POST", "/v1.41/containers/web/wait"),
    ("DELETE", "/v1.41/containers/web?force=1"),
    ("POST", "/v1.41/containers/prune"),
    ("GET", "/v1.41/info"),
    ("GET", "/v1.41/events"),
    ("GET", "/v1.41/images/json"),
    ("POST", "/v1.41/images/create?fromImage=x"),
    ("GET", "/v1.41/networks"),
    ("POST", "/v1.41/networks/bridge/connect"),
    ("POST", "/v1.41/volumes/create"),
    ("GET", "/v1.41/secrets"),
    ("POST", "/v1.41/swarm/init"),
    ("POST", "/v1.41/plugins/pull"),
    ("POST", "/session"),
    ("POST", "/grpc"),
    ("GET", "/v1.41/distribution/x/json"),
    # another method
    ("POST", "/v1.41/containers/web/json"),
    ("GET", "/v1.41/containers/web/restart"),
    ("get", "/v1.41/containers/web/json"),
    ("CONNECT", "docker:80"),
    ("OPTIONS", "*"),
    ("TRACE", "/v1.41/containers/web/json"),
    # other ways to write an address
    ("POST", "/v1.41/containers/web/../create"),
    ("POST", "/v1.41/containers/web%2F..%2Fcreate/restart"),
    ("POST", "/v1.41/containers/%77eb/restart"),
    ("POST", "/v1.41//containers/web/restart"),
    ("POST", "//v1.41/containers/web/restart"),
    ("POST", "/v1.41/containers/web/restart/"),
    ("POST", "/v1.41/containers/web/restart;x"),
    ("POST", "/v1.41/containers/web/restart#x"),
    ("POST", "/v2.0/containers/web/restart"),
    ("POST", "/v1.41/v1.41/containers/web/restart"),
    ("POST", "/V1.41/containers/web/restart"),
    ("POST", "http://docker/v1.41/containers/web/restart"),
    ("POST", "/v1.41/containers/web\t/restart"),
    ("POST", "/v1.41/containers/wéb/restart"),
    ("POST", "/v1.41/containers/.web/restart"),
    ("POST", "/v1.41/containers/../restart"),
    ("POST", "/v1.41/containers/web/restart\n"),
    ("POST", "/v1.41/containers/web\n/restart"),
    ("POST", f"/v1.41/containers/{'w' * 200}/restart"),
    ("POST", "/v1.41/exec/0123/start"),
    ("POST", f"/v1.41/exec/{ID.upper()}/resize?h=1&w=1"),
    # options
    ("POST", "/v1.41/containers/web/restart?t=10&t=20"),
    ("POST", "/v1.41/containers/web/restart?t=10;signal=KILL"),
    ("POST", "/v1.41/containers/web/restart?t=ten"),
    ("POST", "/v1.41/containers/web/restart?x=1"),
    ("POST", "/v1.41/containers/web/restart?T=1"),
    ("POST", "/v1.41/containers/web/kill?signal=KILL%0d%0aX:%20y"),
    ("POST", "/v1.41/containers/web/start?checkpoint=x&checkpoint-dir=/"),
    ("GET", "/v1.41/containers/web/top?ps_args=-o%20pid,cmd%20--pid%201"),
    ("GET", "/v1.41/containers/web/top?ps_args=eww"),
    ("GET", "/v1.41/containers/web/top?ps_args=ef"),
    ("GET", "/v1.41/containers/json?filters=%7B%22volume%22%3A%5B%22x%22%5D%7D"),
    ("GET", "/v1.41/containers/json?filters=%5B%5D"),
    ("GET", "/v1.41/containers/web/logs?stdout=1&" + "&".join(f"a{n}=1" for n in range(20))),
    ("GET", "/v1.41/containers/web/logs?stdout=%ff"),
    ("GET", "/v1.41/containers/web/logs?stdout"),
]

EXEC = "/v1.41/containers/web/exec"


@pytest.mark.parametrize(("method", "target", "verb"), UNDERSTOOD)
def test_what_the_docker_command_sends_is_understood_and_said_again(method: str, target: str, verb: str) -> None:
    call = read_call(method, target)
    assert call.verb == verb
    again = call.target(ID)
    assert again.split("?")[0] == target.split("?")[0].replace("/web/", f"/{ID}/")
    assert read_call(method, again).query == call.query


@pytest.mark.parametrize(("method", "target"), REFUSED)
def test_everything_else_is_refused(method: str, target: str) -> None:
    with pytest.raises(Denied):
        read_call(method, target)


@given(method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]), target=st.text(max_size=80))
def test_no_text_becomes_another_kind_of_address(method: str, target: str) -> None:
    for given_target in (target, f"/v1.41/containers/{target}", f"/v1.41/containers/web/restart?{target}"):
        try:
            call = read_call(method, given_target)
        except Denied:
            continue
        path = call.target(ID).partition("?")[0]
        assert re.fullmatch(rf"(/v1\.\d+)?(/_ping|/version|/containers/json|/containers/{ID}/[a-z]+)", path), path
        assert call.method == method


@pytest.mark.parametrize(("method", "target", "verb"), UNDERSTOOD)
def test_a_body_or_a_stream_where_none_belongs_is_refused(method: str, target: str, verb: str) -> None:
    with pytest.raises(Denied):
        read_call(method, target, b"{}")
    with pytest.raises(Denied):
        read_call(method, target, upgrade=True)


def test_an_exec_keeps_what_is_harmless_and_drops_what_is_empty() -> None:
    sent = {
        "User": "",
        "Privileged": False,
        "Tty": True,
        "DetachKeys": "",
        "Env": None,
        "Cmd": ["sh", "-c", "id"],
        "WorkingDir": "/",
        "AttachStdout": True,
        "ConsoleSize": [40, 120],
    }
    call = read_call("POST", EXEC, json.dumps(sent).encode())
    assert set(call.body) == {"Tty", "Env", "Cmd", "WorkingDir", "AttachStdout", "ConsoleSize"}


@pytest.mark.parametrize(
    "change",
    [
        {"Privileged": True},
        {"privileged": True},
        {"User": "root"},
        {"user": "0"},
        {"Cmd": []},
        {"Cmd": "id"},
        {"Cmd": [1]},
        {"Cmd": None},
        {"cmd": ["id"]},
        {"Env": {"A": "b"}},
        {"Tty": "yes"},
        {"ConsoleSize": [True, False]},
        {"HostConfig": {"Binds": ["/:/h"]}},
        {"New": 0.5},
    ],
    ids=str,
)
def test_an_exec_with_more_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Denied):
        read_call("POST", EXEC, json.dumps({"Cmd": ["id"], **change}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_an_exec_without_a_readable_document_is_refused(body: bytes) -> None:
    with pytest.raises(Denied):
        read_call("POST", EXEC, body)


def test_an_exec_that_is_attached_has_to_ask_for_a_stream() -> None:
    target = f"/v1.41/exec/{ID}/start"
    with pytest.raises(Denied, match="stream"):
        read_call("POST", target, b'{"Detach": false}')
    assert read_call("POST", target, b'{"Detach": false, "Tty": true}', upgrade=True).body["Tty"] is True
    assert read_call("POST", target, b'{"Detach": true}').body == {"Detach": True}


def test_rules_give_each_verb_to_each_name_of_the_same_grant_only() -> None:
    rules = Rules.parse(["restart,logs:web,shop-*", "stop:db"])
    assert rules.allows("restart", "web")
    assert rules.allows("logs", "shop-worker-1")
    assert rules.allows("stop", "db")
    assert not rules.allows("stop", "web")
    assert not rules.allows("restart", "db")
    assert not rules.allows("restart", "web2")
    assert not rules.allows("restart", "my-shop-1")
    assert not rules.allows("restart", "")
    assert rules.lists("db")
    assert not rules.lists("other")


def test_looking_comes_with_what_the_docker_command_has_to_look_for() -> None:
    rules = Rules.parse(["logs:web", "restart:db"])
    assert rules.allows("inspect", "web")
    assert not rules.allows("inspect", "db")
    assert not Rules.parse(["inspect:web"]).allows("logs", "web")


@pytest.mark.parametrize(
    "text",
    ["", "restart", "restart:", ":web", "create:web", "restart,build:web", "restart:we b", "restart:/web", "a:[w]"],
)
def test_words_that_mean_nothing_are_refused_and_say_what_would(text: str) -> None:
    with pytest.raises(ConfigError, match=r"restart|cannot be the name"):
        Rules.parse([text])


def test_nothing_allowed_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--allow"):
        Rules.parse([])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_can_be_allowed_and_is_a_request(verb: str) -> None:
    assert Rules.parse([f"{verb}:web"]).allows(verb, "web")
    assert verb == "exec" or verb in {known for _, _, known in UNDERSTOOD}


@pytest.mark.parametrize(
    "container",
    [
        {"HostConfig": {"Privileged": True}},
        {"HostConfig": {"PidMode": "host"}},
        {"HostConfig": {"CapAdd": ["SYS_ADMIN"]}},
        {"HostConfig": {"CapAdd": ["CAP_SYS_PTRACE"]}},
        {"HostConfig": {"Devices": [{"PathOnHost": "/dev/sda"}]}},
        {"HostConfig": {"DeviceCgroupRules": ["a *:* rwm"]}},
        {"Mounts": [{"Type": "volume", "Source": "/var/lib/docker/volumes/x", "Destination": "/run/docker-proxy"}]},
        {"Mounts": [{"Type": "bind", "Source": "/run/docker-proxy", "Destination": "/socket"}]},
        {"Mounts": [{"Type": "bind", "Source": "/"}]},
        {"Mounts": [{"Type": "bind", "Source": "/var/run/docker.sock"}]},
    ],
    ids=str,
)
def test_a_container_that_is_root_on_the_host_or_the_agents_own_is_seen(container: dict[str, object]) -> None:
    assert mighty(container, "/run/docker-proxy")
    plain = {"HostConfig": {"CapAdd": None, "Privileged": False, "PidMode": ""}, "Mounts": [{"Type": "volume"}]}
    assert not mighty(plain, "/run/docker-proxy")


def test_the_values_of_the_environment_are_not_shown() -> None:
    document = {"Id": ID, "Config": {"Env": ["TOKEN=hunter2=x", "EMPTY"], "Image": "i"}}
    assert shown(document)["Config"] == {"Env": ["TOKEN=[hidden]", "EMPTY=[hidden]"], "Image": "i"}
    assert document["Config"]["Env"][0] == "TOKEN=hunter2=x"  # type: ignore[index]

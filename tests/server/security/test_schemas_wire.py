"""Schemas that clients send: compiled behind their quotas, charged to them, and refused where they cost too much."""

import json
import re
from contextlib import asynccontextmanager
from functools import cache

import pytest
from talk import Clock, calling

from outrider_drafters.contracts.schema_compiler import SchemaCompiler
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import Reason
from outrider_proto.frames import Decode, Open, Sampling, TokenRules
from outrider_server.config.config import SecurityConfig
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.security.authenticator import Authenticator
from outrider_server.security.keys import Key, digest_of, new_secret, write_keys
from outrider_server.security.principal import ALL_SCOPES, Quota
from outrider_server.sessions.verifier import Verifier

HOSTILE = {"allOf": [{"type": "string", "pattern": f".*a{i}.*b{i}.*"} for i in range(16)]}


@cache
def target() -> Target:
    return Target.load(target_dir())


@asynccontextmanager
async def serving(tmp_path, *quotas: Quota):
    """A server, and a key for each quota."""
    secrets = [new_secret(f"key{i}") for i in range(len(quotas))]
    keys = [Key(f"key{i}", digest_of(secrets[i]), ALL_SCOPES, quota) for i, quota in enumerate(quotas)]
    write_keys(tmp_path / "keys.toml", keys)
    verifier = Verifier(target(), clock=Clock(), longest_wait_s=0)
    security = SecurityConfig(keys=tmp_path / "keys.toml")
    async with Server(verifier, authenticator=Authenticator(security)) as server:
        yield server, secrets


def sampling(schema) -> Sampling:
    return Sampling(rules=TokenRules(json.dumps(schema), answer_from=3))


def decode(seq: int, schema, base_len: int = 0) -> Decode:
    return Decode(seq, base_len, (5, 6), 7, 3, sampling=sampling(schema))


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The schemas that the server has compiled."""
    names, compile_schema = [], SchemaCompiler.compile

    def noted(self, schema, *rest):
        if self.find(schema, *rest[:1]) is None:
            names.append(schema)
        return compile_schema(self, schema, *rest)

    monkeypatch.setattr(SchemaCompiler, "compile", noted)
    return names


async def test_for_a_key_whose_sessions_are_used_up_nothing_is_compiled(tmp_path, compiled):
    async with serving(tmp_path, Quota(sessions=1)) as (server, (key,)), calling(server.address, key) as first:
        about = server.verifier.describe()
        await first.open(about)
        async with calling(server.address, key) as second:
            known = (about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint)
            await second.send(Open(*known, sampling=sampling(HOSTILE)))
            assert (await second.refusal()).reason is Reason.OVER_QUOTA
    assert compiled == []


async def test_a_schema_is_charged_to_its_key_once_and_without_rate_left_nothing_is_compiled(tmp_path, compiled):
    schemas = [{"const": number} for number in range(4)]
    async with serving(tmp_path, Quota(tokens_per_minute=3600)) as (server, (key,)):  # 600 at once
        async with calling(server.address, key) as talk:
            await talk.open(server.verifier.describe())
            for seq, schema in enumerate([schemas[0], schemas[0], schemas[1]], 1):
                await talk.send(decode(seq, schema))
                while not (await talk.receive()).finish:
                    pass
            await talk.send(decode(4, schemas[2]))  # takes the rest
            assert (await talk.refusal()).reason is Reason.OVER_QUOTA
        async with calling(server.address, key) as talk:
            await talk.open(server.verifier.describe())
            await talk.send(decode(1, schemas[3]))
            assert (await talk.refusal()).reason is Reason.OVER_QUOTA
    assert compiled == [json.dumps(schema) for schema in schemas[:3]]


async def test_a_hostile_schema_is_refused_and_another_key_hears_nothing_of_it(tmp_path, compiled):
    async with serving(tmp_path, Quota(), Quota()) as (server, keys):
        for key in (*keys, keys[0]):
            async with calling(server.address, key) as talk:
                await talk.open(server.verifier.describe())
                await talk.send(decode(1, HOSTILE))
                refusal = await talk.refusal()
                assert refusal.reason is Reason.BAD_SAMPLING
                assert re.fullmatch(r"json_schema: takes more than (2 s|256 MiB) to compile: .*", refusal.message)
    assert compiled == [json.dumps(HOSTILE)] * 2

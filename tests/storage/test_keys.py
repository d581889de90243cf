"""API keys, over a real database."""

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from apexbridge._time import now_ms
from apexbridge.errors import ApexBridgeError
from apexbridge.storage import key_store as keys_module
from apexbridge.storage.database import Database
from apexbridge.storage.key_store import ApiKey, KeyStore

pytestmark = pytest.mark.anyio


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    opened = Database(folder / "apex.sqlite3")
    try:
        yield opened
    finally:
        opened.close()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[KeyStore]:
    with database(folder) as opened_database:
        store = KeyStore(opened_database)
        await store.load()
        yield store
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[KeyStore]:
    async with opened(tmp_path) as made:
        yield made


async def test_a_key_is_its_id_and_a_256_bit_secret_of_which_only_the_digest_is_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        key, text = await store.create("laptop", ["chat", "run"])
        form = re.fullmatch(r"apex_([0-9a-f]{8})_([A-Za-z0-9_-]{43})", text)
        assert form is not None
        assert form[1] == key.id
        assert key.digest == hashlib.sha256(form[2].encode()).digest()
        assert key.scopes == {"chat", "run"}
    assert all(form[2].encode() not in path.read_bytes() for path in tmp_path.glob("apex.sqlite3*"))


async def test_keys_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        key, text = await store.create("laptop", ["chat"], expires_at=now_ms() + 60_000)
        gone, gone_text = await store.create("phone", ["admin"])
        await store.revoke(gone.id)
    async with opened(tmp_path) as store:
        assert store.find(text) == key
        assert {known.id for known in store.list()} == {key.id, gone.id}
        revoked = store.find(gone_text)
        assert revoked is not None
        assert revoked.problem(now_ms()) == "was revoked"


async def test_only_the_complete_key_is_found(store: KeyStore) -> None:
    key, text = await store.create("x", ["chat"])
    _, other = await store.create("y", ["chat"])
    swapped = f"apex_{key.id}_{other[14:]}"
    wrong = [
        "",
        text[:-1],
        text + "x",
        text.upper(),
        f" {text}",
        swapped,
        text.replace(key.id, "00000000"),
        "apex__",
        "é",
    ]
    assert [store.find(text) for text in wrong] == [None] * len(wrong)
    assert store.find(text) == key


async def test_secrets_are_compared_in_constant_time_even_if_the_id_is_unknown(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await store.create("x", ["chat"])
    compared: list[tuple[int, int]] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    class Watched:
        compare_digest = staticmethod(watched)

    monkeypatch.setattr(keys_module, "hmac", Watched)
    assert store.find(text) is not None
    assert store.find(text[:-2] + ("AA" if not text.endswith("AA") else "BB")) is None
    assert store.find(f"apex_ffffffff_{'A' * 43}") is None
    assert compared == [(32, 32)] * 3


async def test_a_key_is_usable_until_it_expires_or_is_revoked(store: KeyStore) -> None:
    assert not store.has_usable
    now = now_ms()
    key, _ = await store.create("x", ["chat"], expires_at=now + 1000)
    assert store.has_usable
    assert (key.problem(now), key.problem(now + 999), key.problem(now + 1000)) == (None, None, "has expired")
    await store.revoke(key.id)
    assert not store.has_usable
    first = store.list()[0].revoked_at
    assert (await store.revoke(key.id)).revoked_at == first, "revoking again changes nothing"


async def test_only_admin_keys_have_all_scopes(store: KeyStore) -> None:
    admin, _ = await store.create("a", ["admin"])
    chat, _ = await store.create("c", ["chat"])
    assert all(admin.allows(scope) for scope in keys_module.SCOPES)
    assert [scope for scope in keys_module.SCOPES if chat.allows(scope)] == ["chat"]


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("", ["chat"]), ("  ", ["chat"]), ("x" * 101, ["chat"]), ("a\nb", ["chat"]), ("x", []), ("x", ["chat", "root"])],
)
async def test_a_key_without_a_valid_name_or_scope_is_not_created(
    store: KeyStore, name: str, scopes: list[str]
) -> None:
    with pytest.raises(ApexBridgeError) as caught:
        await store.create(name, scopes)
    assert caught.value.code == "INVALID_INPUT"
    assert store.list() == []


async def test_revoking_an_unknown_key_raises_not_found(store: KeyStore) -> None:
    with pytest.raises(ApexBridgeError) as caught:
        await store.revoke("00000000")
    assert caught.value.code == "NOT_FOUND"


async def test_the_last_use_is_shown_immediately_and_written_later(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        key, _ = await store.create("x", ["chat"])
        for moment in (1000, 2000, 3000):
            store.note_use(key, moment)
        assert store.list()[0].last_used_at == 3000
        assert await _written(tmp_path) == [None], "it is written later"
    assert await _written(tmp_path) == [3000]


async def test_a_last_use_that_cannot_be_written_raises_nothing(tmp_path: Path) -> None:
    with database(tmp_path) as opened_database:
        store = KeyStore(opened_database)
        key, _ = await store.create("x", ["chat"])
        await opened_database.write(lambda connection: connection.execute("DROP TABLE api_keys"))
        store.note_use(key, 5)
        await store.close()
        assert store.list()[0].last_used_at == 5


async def _written(folder: Path) -> list[int | None]:
    with database(folder) as opened_database:
        store = KeyStore(opened_database)
        await store.load()
        return [key.last_used_at for key in store.list()]


def test_the_repr_of_a_key_does_not_contain_its_digest() -> None:
    key = ApiKey(id="a" * 8, name="x", digest=b"secret", scopes=frozenset({"chat"}), created_at=0)
    assert "secret" not in repr(key)

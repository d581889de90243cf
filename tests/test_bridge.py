from pathlib import Path

import pytest

import apexbridge
from apexbridge import ApexBridgeError, Bridge, Settings, Tool
from apexbridge.errors import ServerError, SkillNotFoundError
from apexbridge.settings import load_settings, origins
from tests.making import skill_zip

pytestmark = pytest.mark.anyio


async def test_the_public_names_work_together(data_dir: Path) -> None:
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        receipt = await bridge.skills.install_skill(skill_zip(), overwrite=False)
        assert receipt.name == "git-commit"
        shout = Tool.define("shout", description="Louder.", execute=lambda input, context: input["text"].upper())
        bridge.tools.register(shout)
        assert (await bridge.tools.execute("shout", {"text": "hey"})).output == "HEY"
        assert await bridge.builtins.execute("calculate", {"expression": "sqrt(144) + 10"}) == {
            "success": True,
            "result": 22,
        }
    public = {"ApexBridgeError", "Bridge", "Settings", "Tool", "ToolContext", "ToolResult", "__version__"}
    assert set(apexbridge.__all__) == {*public, "Client", "SyncClient"}
    with pytest.raises(AttributeError):
        apexbridge.Nothing  # noqa: B018


async def test_an_error_raised_inside_the_block_is_not_wrapped(data_dir: Path) -> None:
    with pytest.raises(SkillNotFoundError):
        async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
            await bridge.skills.get_skill("none")


async def test_a_data_directory_can_be_opened_only_once(data_dir: Path) -> None:
    async with Bridge.open(Settings(data_dir=data_dir)):
        with pytest.raises(ApexBridgeError) as caught:
            async with Bridge.open(Settings(data_dir=data_dir)):
                pass
    assert caught.value.code == "DATA_DIR_IN_USE"


async def test_a_start_reports_its_progress(data_dir: Path) -> None:
    from tests.making import write_skill

    for number in range(3):
        write_skill(data_dir / "skills", f"s{number}")
    read: list[tuple[int, int]] = []
    indexed: list[tuple[int, int]] = []
    async with Bridge.open(
        Settings(data_dir=data_dir),
        progress=lambda done, total: read.append((done, total)),
        index_progress=lambda done, total: indexed.append((done, total)),
    ):
        pass
    assert (read, indexed) == ([(3, 3)], [(3, 3)])


def test_flags_override_the_environment_and_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("apex.toml").write_text('port = 1\nhost = "localhost"\ndefault_profile = "strict"\n')
    monkeypatch.setenv("APEX_PORT", "2")
    monkeypatch.setenv("APEX_HOST", "127.0.0.2")
    settings = load_settings(port=3, host=None)
    assert (settings.port, settings.host, settings.default_profile) == (3, "127.0.0.2", "strict")
    sources = origins(port=3)
    assert [sources[name] for name in ("port", "host", "default_profile", "url")] == [
        "flag",
        "environment",
        "apex.toml",
        "default",
    ]


def test_roots_are_separated_by_colons_and_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_SKILL_ROOTS", "~/skills::relative")
    roots = load_settings().skill_roots
    assert [path.is_absolute() for path in roots] == [True, True]
    assert roots[0] == Path("~/skills").expanduser()
    assert roots[1] == Path("relative").absolute()


@pytest.mark.parametrize(
    ("file", "environment", "flags", "source"),
    [
        ("", {"APEX_PORT": "many"}, {}, "APEX_PORT"),
        ("port = 'x'", {}, {}, "port in apex.toml"),
        ("nothing = 1", {}, {}, "nothing in apex.toml"),
        ("port = ", {}, {}, "apex.toml cannot be read"),
        ("", {}, {"port": 70000}, "--port"),
    ],
)
def test_the_error_about_an_invalid_setting_names_its_source(
    monkeypatch: pytest.MonkeyPatch, file: str, environment: dict[str, str], flags: dict[str, int], source: str
) -> None:
    Path("apex.toml").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ServerError) as caught:
        load_settings(**flags)
    assert source in caught.value.message
    assert caught.value.code == "INVALID_SETTING"

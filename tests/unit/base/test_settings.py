"""What is configured: arguments aside, variables win over the file, and that over the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.base import settings
from fairqr.base.errors import ConfigError
from fairqr.base.settings import SETTINGS, ValueSource, find, is_on, path_of, variable_of


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(variable_of(setting.name), raising=False)


class TestFinding:
    @pytest.mark.promise("base")
    def test_each_setting_has_a_place_in_the_file_and_a_variable(
        self, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every setting has a place in the settings file, and a variable that overrides it."""
        general = [setting for setting in SETTINGS if "." not in setting.name]
        of_elasticsearch = [setting for setting in SETTINGS if "." in setting.name]
        lines = [*map(_line, general), "[elasticsearch]", *map(_line, of_elasticsearch)]
        settings_file.write_text("\n".join(lines))
        for setting in SETTINGS:
            value, source = find(setting.name)
            assert source == ValueSource("file", str(settings_file)), setting.name
            assert value is True if setting.kind == "switch" else "in the file" in str(value)
            variable = variable_of(setting.name)
            monkeypatch.setenv(variable, "0" if setting.kind == "switch" else "other")
            value, source = find(setting.name)
            assert source == ValueSource("variable", variable)
            assert value is False if setting.kind == "switch" else value == "other"

    def test_paths_of_the_file_are_beside_it(self, settings_file: Path, tmp_path: Path) -> None:
        settings_file.write_text(
            'data_dir = "data"\nprompts_dir = "~/prompts"\ntrace_dir = "/runs"\n'
        )
        assert settings.data_dir() == tmp_path / "data"
        assert path_of("prompts_dir") == Path.home() / "prompts"
        assert path_of("trace_dir") == Path("/runs")

    def test_a_switch_is_on_or_off_and_nothing_in_between(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether content is recorded must not be guessed."""
        for given, on in {"1": True, "true": True, "ON": True, "0": False, "off": False}.items():
            monkeypatch.setenv("FAIRQR_TRACE_CONTENT", given)
            assert is_on("trace_content") is on
        monkeypatch.setenv("FAIRQR_TRACE_CONTENT", "maybe")
        with pytest.raises(ConfigError, match="FAIRQR_TRACE_CONTENT must be on or off"):
            is_on("trace_content")


class TestTheFile:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (None, r"cannot be read .*No such file"),
            ("model = \n", r"cannot be read \(.*line 1"),
            ("x = " + "[" * 100_000, "cannot be read"),
            ("modle = 'a'\n", r"has 'modle', which is no setting; did you mean 'model'"),
            ("[elasticsearch]\nurll = 'a'\n", r"'elasticsearch.urll', which is no setting"),
            ("model = 3\n", "model is wrong; write text in quotes"),
            ("trace_content = '1'\n", "trace_content is wrong; write true or false"),
            ("service = 3\n", r"service is wrong; write \[service\] above its settings"),
        ],
    )
    def test_what_is_wrong_is_told_in_a_sentence(
        self, content: str | None, words: str, settings_file: Path
    ) -> None:
        if content is not None:
            settings_file.write_text(content)
        with pytest.raises(ConfigError, match=words) as caught:
            find("corpus")
        assert str(settings_file) in str(caught.value)
        assert "\n" not in str(caught.value)


def _line(setting: settings.Setting) -> str:
    value = "true" if setting.kind == "switch" else '"in the file"'
    return f"{setting.name.rpartition('.')[2]} = {value}"

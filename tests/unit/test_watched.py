"""The settings of how a process is watched."""

from __future__ import annotations

import pytest

from runonce.errors import SettingsError
from runonce.settings import Settings
from runonce.watched import Watched

EMULATOR = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
SECRET = "T0K3N-s3cr3t"


def test_nobody_is_told_by_default() -> None:
    """Without settings nothing is sent anywhere."""
    assert Settings.from_env(EMULATOR).watched == Watched()


def test_a_webhook_is_a_part_of_the_settings_and_in_no_picture_of_them() -> None:
    """The URL is there, and what prints the settings does not print it."""
    settings = Settings.from_env({**EMULATOR, "RUNONCE_NOTIFY_URL": f" https://hooks.example/{SECRET} "})
    assert settings.watched.notify_url == f"https://hooks.example/{SECRET}"
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "url",
    [
        f"hooks.example/{SECRET}",
        f"ftp://h/{SECRET}",
        f"https:///{SECRET}",
        f"https://h:x/{SECRET}",
        f"https://h/ {SECRET}",
    ],
)
def test_what_is_no_url_is_one_error_that_does_not_repeat_it(url: str) -> None:
    """The message names the setting and the remedy."""
    with pytest.raises(
        SettingsError, match=r"RUNONCE_NOTIFY_URL is not a URL .*give the whole of it"
    ) as caught:
        Settings.from_env({**EMULATOR, "RUNONCE_NOTIFY_URL": url})
    assert SECRET not in str(caught.value)


def test_a_key_vaults_reference_that_was_not_resolved_says_so() -> None:
    """The Functions host hands on the reference itself where it may not read the secret."""
    reference = "@Microsoft.KeyVault(SecretUri=https://shop.vault.azure.net/secrets/notify)"
    with pytest.raises(SettingsError, match="let the app's identity read that secret"):
        Settings.from_env({**EMULATOR, "RUNONCE_NOTIFY_URL": reference})


@pytest.mark.parametrize("kind", ["console", "otlp", "azure", "own"])
def test_where_telemetry_goes(kind: str) -> None:
    """One of four places."""
    assert Settings.from_env({**EMULATOR, "RUNONCE_TELEMETRY": kind}).watched.telemetry == kind


def test_telemetry_elsewhere_is_one_error() -> None:
    """The message names the setting, the value and what it can be."""
    with pytest.raises(
        SettingsError, match="RUNONCE_TELEMETRY='jaeger' must be one of console, otlp, azure, own"
    ):
        Settings.from_env({**EMULATOR, "RUNONCE_TELEMETRY": "jaeger"})

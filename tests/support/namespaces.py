"""Settings for tests: each set has a namespace that no other test uses."""

from __future__ import annotations

import uuid
from typing import Any

from runonce.settings import LeaseTerms, Settings, StorageConnection


def fresh_settings(connection_string: str, **more: Any) -> Settings:
    """Settings of an unused namespace, with the shortest lease there is."""
    namespace = f"t-{uuid.uuid4().hex[:12]}"
    return Settings(namespace, StorageConnection(connection_string), LeaseTerms(15, 5, 2), **more)

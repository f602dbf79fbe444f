"""A real PgBouncer of a test's own, before a PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.postgresql import UNPRIVILEGED

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def pgbouncer(address: str, mode: str) -> Iterator[str]:
    """Its address; it refuses to run as root, too."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "install PgBouncer: apt-get install pgbouncer"
    server = urlsplit(address)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="runonce-pgbouncer-") as folder:
        user = UNPRIVILEGED if os.geteuid() == 0 else None
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        users, settings = Path(folder) / "users", Path(folder) / "settings.ini"
        users.write_text(f'"{server.username}" ""\n')
        settings.write_text(
            f"[databases]\n* = host={server.hostname} port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\npool_mode = {mode}\n"
        )
        process = subprocess.Popen([program, "-q", settings], user=user, stderr=subprocess.DEVNULL)
        try:
            while True:
                assert process.poll() is None, "PgBouncer did not start"
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    continue
            yield address.replace(f":{server.port}/", f":{port}/")
        finally:
            process.kill()
            process.wait()

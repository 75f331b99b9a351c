"""A redis-server that takes one user with few rights, over TLS alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.processes.process import free_port

USER = "slotgate"
RIGHTS = (  # as the README says
    "resetchannels ~{slotgate:default}:* &{slotgate:default}:* -@all +evalsha +eval +subscribe +ping "
    "+publish +time +hgetall +hget +hmget +hset +hsetnx +hdel "
    "+zadd +zrem +zcard +zscore +zremrangebyscore +pexpire +xadd +xread"
)
CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 "
    "-addext subjectAltName=IP:127.0.0.1"
)


def guarded(folder: Path) -> tuple[tuple[str, ...], str]:
    """Its options, with a new certificate in this folder; and the URL for that user."""
    made, key, users, port = folder / "cert.pem", folder / "key.pem", folder / "users.acl", free_port()
    subprocess.run(
        ["openssl", *CERTIFICATE.split(), "-keyout", key, "-out", made], check=True, capture_output=True
    )
    users.write_text(f"user default off\nuser {USER} on >hush {RIGHTS}\n")
    options = {
        "--port": "0",
        "--tls-port": str(port),
        "--tls-cert-file": str(made),
        "--tls-key-file": str(key),
        "--tls-auth-clients": "no",
        "--aclfile": str(users),
    }
    arguments = tuple(part for option in options.items() for part in option)
    return arguments, f"rediss://{USER}:hush@127.0.0.1:{port}?ssl_ca_certs={made}"

"""The role of the embedded object store that credentials of tasks are minted from.

The role trusts the platform's identity by its full ARN. A session is another principal, so it cannot assume the role
again to lose its session policy. The role itself may read, write and list, and never write below `datasets/`, where
committed files lie, nor reach the bucket of the platform alone, with bundles and logs: whatever a session policy says,
no task's credentials open those.
"""

import base64
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from tracelake.private_files import write_private

ACCOUNT = "000000000000"
TASK_ROLE = f"arn:aws:iam::{ACCOUNT}:role/trace-task"
_KEY_BYTES = 32
PRIVATE_BUCKETS = ("trace-bundles",)


def write_roles(path: Path, identity: str, private_buckets: Sequence[str] = PRIVATE_BUCKETS) -> None:
    """Write the configuration of STS and of the role, readable by its owner alone.

    The key that signs session tokens stays the same, so that credentials outlive a restart of the store.
    """
    closed = [f"arn:aws:s3:::{bucket}{tail}" for bucket in private_buckets for tail in ("", "/*")]
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"],
                "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"],
            },
            {"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::*/datasets/*"]},
            {"Effect": "Deny", "Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"], "Resource": closed},
        ],
    }
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/{identity}"},
                "Action": ["sts:AssumeRole"],
            }
        ],
    }
    document = {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "1h",
            "issuer": "trace",
            "signingKey": _read_key(path) or base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "trace-task", "document": policy}],
        "roles": [
            {
                "roleName": "trace-task",
                "roleArn": TASK_ROLE,
                "trustPolicy": trust,
                "attachedPolicies": ["trace-task"],
            }
        ],
    }
    write_private(path, json.dumps(document) + "\n")


def _read_key(path: Path) -> str | None:
    try:
        key = json.loads(path.read_text())["sts"]["signingKey"]
        return key if isinstance(key, str) and len(base64.b64decode(key)) == _KEY_BYTES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
